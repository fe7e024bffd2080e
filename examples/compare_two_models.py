"""Compare two models of the zoo on the bundled digits: accuracies, intervals, and which differences stand.

python examples/compare_two_models.py
"""

import subprocess
import sys
import tempfile

import robust_interp

A, B = "in_resnet20", "plain_net20"

with tempfile.TemporaryDirectory() as folder:
    table = robust_interp.evaluate(
        [A, B],
        "digits",
        seeds=(0, 1, 2),  # three train seeds each
        ensembles=False,
        n=30,
        eps=(32 / 255,),
        attacks="fgsm,pgd(steps=5)",
        corruptions="none",
        out=folder,
    )
    print("accuracy in % of each train seed, with its 95 % interval over the images (n = 30)")
    for line in table.itertuples():
        name = f"{line.model} seed {line.train_seed}"
        print(
            f"{name:<20} {line.perturbation:<6} {line.accuracy:5.1f}  {line.ci_low:.1f} to {line.ci_high:.1f}"
        )

    print("\nWhich differences are significant? A test over the images, and an interval over seeds:")
    program = [sys.executable, "-m", "robust_interp"]  # robust-interp, of this environment
    command = [*program, "leaderboard", "compare", folder, "--models", f"{A},{B}"]
    print(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
