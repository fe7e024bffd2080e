"""Compare two models of the zoo on the bundled digits: accuracies, intervals, and which differences stand.

python examples/compare_two_models.py
"""

import subprocess
import tempfile

import robust_interp

A, B = "in_resnet20", "plain_net20"

with tempfile.TemporaryDirectory() as folder:
    table = robust_interp.evaluate(
        [A, B],
        "digits",
        seeds=(0, 1, 2),  # three train seeds each
        ensembles=False,
        n=40,
        eps=(32 / 255,),
        attacks="fgsm,pgd(steps=10)",
        corruptions="none",
        out=folder,
    )
    print("accuracy in % of each train seed, with its 95 % interval over images, n = 40")
    for line in table.itertuples():
        interval = f"({line.ci_low:.1f} to {line.ci_high:.1f})"
        print(
            f"{line.model:<12} seed {line.train_seed}  {line.perturbation:<6} {line.accuracy:5.1f}  {interval}"
        )

    print("\nWhich differences are significant? The verdict uses a paired test over the images")
    print("and an interval over the train seeds.", flush=True)
    subprocess.run(["robust-interp", "leaderboard", "compare", A, B, "--results", folder], check=True)
