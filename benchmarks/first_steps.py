"""The first steps of a training on CIFAR-10: how far λ and the weights of the stem move, step by step.

    python benchmarks/first_steps.py [--architecture in_resnet110] [--seed 0] [--set warmup_epochs=1]
        [--steps 50] [--threads 1] [--plugin benchmarks/controls.py]

The recipe is `quick`, the steps are those of `robust-interp train` on a CPU. `stem` is the Frobenius norm of
the weights of the first convolution, followed by that of their gradient in this step, and by the share of the
squares of the weights that is in the mean of each filter (see front_filters.py). Numbers: docs/mechanism.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from front_filters import mean_share
from torch import Tensor

from robust_interp import data, plugins
from robust_interp.models.merges import Lambda
from robust_interp.training import recipe as recipes
from robust_interp.training.job import Job, Training


def stem_now(stem: Tensor) -> str:
    gradient = 0.0 if stem.grad is None else stem.grad.norm().item()
    return f"stem {stem.norm().item():.3g}, gradient {gradient:.3g}, mean's share {mean_share(stem):.2f}"


def lambdas_now(lambdas: list[Tensor]) -> str:
    if not lambdas:
        return ""
    steepest = max((abs(one.grad.item()) for one in lambdas if one.grad is not None), default=0.0)
    values = [one.item() for one in lambdas]
    alive = sum(value > 0.01 for value in values)
    return (
        f", largest gradient of a λ {steepest:.3g}, λ {min(values):.3g} to {max(values):.3g}, "
        f"{alive} of {len(values)} above 0.01"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architecture", default="in_resnet110")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE.py")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for file in arguments.plugin:
        plugins.load(file)

    named = recipes.load("quick", arguments.architecture, "cifar10")
    recipe = recipes.overridden(named, recipes.settings(arguments.set))
    what = Training(arguments.architecture, recipe, arguments.seed)
    images = data.load("cifar10", "train")
    trainer = Job(what, recipe, recipe.model_args(), images, Path(), "cpu", False).trainer()
    lambdas = [module.lambda_ for module in trainer.model.modules() if isinstance(module, Lambda)]
    stem = trainer.model.get_submodule("stem.conv").weight
    trainer.begin()
    for step in range(1, arguments.steps + 1):
        trainer.train_step(*trainer.loader.cut(trainer.loader.draw()))
        trainer.step += 1
        print(f"step {step}: {stem_now(stem)}{lambdas_now(lambdas)}", flush=True)


if __name__ == "__main__":
    main()
