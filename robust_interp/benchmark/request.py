"""What to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from robust_interp import data

PROTOCOLS = ("final", "worst")

STRONG_N = 200

DEFAULT_SEEDS = (0, 1, 2)  # of the embedded default run


@dataclass(frozen=True)
class Request:
    """What to measure. None stands for the dataset's or the machine's default.

    Attributes:
        models: Zoo names, globs or 'all', ``timm:NAME``, ``package.module:factory``, checkpoint folders;
            None is 'all' with three seeds.
        modules: Models that came as objects, by name; measured instead of `models`.
        mean: What the images of models not from the zoo are normalised with, in [0, 1] pixels; None is
            what comes with the model, such as a timm model's ``pretrained_cfg``, and nothing for any other.
        std: Likewise.
        dataset: A registered name, or a dataset made by `data.from_arrays`.
        eps: Linf radii in [0, 1] pixels.
        seeds: Train seeds to take from the zoo (3 means 0, 1, 2); None is every one.
        ensembles: Whether the seeds of a model are also measured as one averaged classifier.
        ensemble: More ensembles, each of what its ``+`` joins among the measured models: names, full names of
            checkpoints, globs or 'all', such as ``in_resnet20+preact_resnet20``.
        ensemble_average: What the ensembles average: ``probabilities`` (None) or ``logits``.
        ensemble_attack: What attacks on the ensembles are made on, one ensemble each: ``white-box`` (None),
            ``member:0``, ``mean-gradient``.
        n: How many of the first samples, or 'all'.
        seed: Seed of every random draw of the measurement: attack starts and generated corruptions.
        checkpoint: A weights file for the one registered name, ``timm:NAME`` or factory in `models`.
        strong: Attack specs that, with the PGD of the row, make the columns ``strong_<eps>``; None leaves
            them out.
        strong_n: How many of the first samples those are measured on; None is STRONG_N, or `n` if that is
            less.
        threads: CPU threads of one operation; None is $OMP_NUM_THREADS, else the fastest number in a short
            test on the largest of the models.
    """

    models: tuple[str, ...] | None = None
    modules: Mapping[str, nn.Module] = field(default_factory=dict)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    dataset: str | data.Dataset = "digits"
    attacks: str = "fgsm,ifgsm,pgd"
    eps: tuple[float, ...] | None = None
    corruptions: str = "noise"
    seeds: int | Sequence[int] | None = None
    ensembles: bool = True
    ensemble: Sequence[str] = ()
    ensemble_average: str | None = None
    ensemble_attack: Sequence[str] | None = None
    n: int | str | None = None
    protocol: str = "final"
    batch_size: int | None = None
    device: str | None = None
    seed: int = 0
    data_dir: str | None = None
    corruptions_dir: str | None = None
    zoo: str | None = None
    checkpoint: str | None = None
    strong: str | None = None
    strong_n: int | None = None
    threads: int | None = None
