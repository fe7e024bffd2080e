"""A request as a plan: which cells are to be measured, on how many samples, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral

import torch

from robust_interp import attacks, corruptions, data
from robust_interp.benchmark.request import DEFAULT_SEEDS, PROTOCOLS, STRONG_N, Request
from robust_interp.classifiers.resolve import ResolveOptions
from robust_interp.core.errors import UserError
from robust_interp.core.registry import Registry
from robust_interp.results.leaderboard import RANKED_BY
from robust_interp.store.cells import CLEAN, Cell, ModelCard, Perturbation, Plan


def load_dataset(request: Request) -> data.Dataset:
    """The dataset that a request names or brings.

    Raises:
        UserError: if it names none that is known and there.
    """
    if isinstance(request.dataset, str):
        return data.load(request.dataset, "test", request.data_dir)
    return request.dataset


def resolve_options(request: Request) -> ResolveOptions:
    """What a request says of its models besides their names."""
    by_default = not (request.models or request.modules or request.ensemble or request.checkpoint)
    return ResolveOptions(
        zoo=request.zoo,
        checkpoint=request.checkpoint,
        mean=request.mean,
        std=request.std,
        seeds=DEFAULT_SEEDS if by_default and request.seeds is None else request.seeds,
        ensembles=request.ensembles,
        ensemble=request.ensemble,
        average=request.ensemble_average,
        attacks=request.ensemble_attack,
    )


def make_plan(
    request: Request, dataset: data.Dataset, corruptor: corruptions.Corruptor, cards: Sequence[ModelCard]
) -> Plan:
    """Every cell that a request asks for of these models.

    Args:
        request: What is asked for.
        dataset: The one that it names.
        corruptor: Where its corrupted images come from.
        cards: The models, in the order of the cells.

    Raises:
        UserError: for an attack, a corruption, a radius or a number of samples that cannot be.
    """
    if request.protocol not in PROTOCOLS:
        raise UserError(f"protocol must be one of {', '.join(PROTOCOLS)}, not {request.protocol!r}")
    if request.strong_n is not None and request.strong is None:
        raise UserError("strong_n goes with strong alone")
    eps, defaults = radii(request, dataset)
    seed = checked_seed(request.seed)
    attacked = _fitting(attacks.resolve(request.attacks, eps, defaults, seed), dataset)
    asked = [CLEAN, *corruptions.resolve(request.corruptions, corruptor), *attacked]
    n = sample_count(request.n, dataset)
    cells = _cells(cards, asked, request.protocol, dataset)
    plan = Plan(dataset.name, n, request.protocol, tuple(cells))
    if not request.strong:
        return plan
    rows = [one for one in asked if one.name == RANKED_BY["final"]]
    rows = rows or attacks.resolve(RANKED_BY["final"], eps, defaults, seed)
    stronger = _fitting(attacks.resolve(request.strong, eps, defaults, seed), dataset)
    return replace(plan, strong=_strong_plan(plan, request.strong_n, dataset, cards, [*rows, *stronger]))


def _strong_plan(
    plan: Plan,
    n: int | None,
    dataset: data.Dataset,
    cards: Sequence[ModelCard],
    attacked: Iterable[Perturbation],
) -> Plan:
    """The same models under the row's PGD and stronger attacks, on samples of their own."""
    once = {perturbation.column: perturbation for perturbation in [CLEAN, *attacked]}
    n = sample_count(min(STRONG_N, plan.n) if n is None else n, dataset)
    return Plan(dataset.name, n, "worst", tuple(_cells(cards, once.values(), "worst", dataset)))


def _cells(
    cards: Sequence[ModelCard], perturbations: Iterable[Perturbation], protocol: str, dataset: data.Dataset
) -> Iterator[Cell]:
    perturbations = list(perturbations)
    for card in cards:
        cells = [make_cell(card, dataset, perturbation) for perturbation in perturbations]
        yield from cells if protocol == "final" else cheap_first(cells)


def make_cell(card: ModelCard, dataset: data.Dataset, perturbation: Perturbation) -> Cell:
    """One measurement, in the environment of this process.

    Raises:
        UserError: if the package that computes the attack is not there.
    """
    environment = {"precision": "float32", "torch": str(torch.__version__)}
    if perturbation.kind == "attack":
        environment |= attacks.environment(perturbation)
    environment |= _plugin(perturbation)
    return Cell(card, dataset.name, dataset.fingerprint, perturbation, environment)


def cheap_first(cells: list[Cell]) -> list[Cell]:
    """Protocol ``worst``: the cheap attacks first, each following those before it in the same ball.

    Only what still stands is attacked: what counts is whether a sample survives all of them.

    Args:
        cells: Of one target, exactly one of them clean.
    """
    (clean,) = (cell for cell in cells if cell.perturbation.kind == "clean")
    before: dict[tuple | None, tuple[str, ...]] = {}
    ordered = []
    for cell in sorted(cells, key=_place_by_cost):
        if cell.perturbation.kind == "attack":
            ball = cell.perturbation.ball
            skips = (clean.key, *before.get(ball, ()))
            if ball:
                before[ball] = (*before.get(ball, ()), cell.key)
            cell = replace(cell, skips=skips)
        ordered.append(cell)
    return ordered


def radii(request: Request, dataset: data.Dataset) -> tuple[list[float], Mapping]:
    """The radii in [0, 1] pixels, and the parameters of attacks that the dataset sets otherwise.

    Returns:
        The radii, each once, from the smallest on; and the parameters by attack, CIFAR-10's for a dataset
        without any of its own.

    Raises:
        UserError: if the radii that are asked for are none.
    """
    kind = data.DATASETS[dataset.name] if dataset.name in data.DATASETS else data.DATASETS["cifar10"]
    usual = tuple(value / 255 for value in kind.eps_255)
    return _checked_radii(usual if request.eps is None else request.eps), kind.attack_defaults


def _checked_radii(eps: object) -> list[float]:
    if isinstance(eps, str) or not isinstance(eps, Sequence) or not eps:
        raise UserError(f"eps must be a list of radii in [0, 1] pixels such as (2/255, 4/255), not {eps!r}")
    for value in eps:
        attacks.check_eps(value)
    return sorted(set(eps))


def sample_count(n: object, dataset: data.Dataset) -> int:
    """How many of the first samples `n` stands for.

    Args:
        n: A number, 'all', or None for the dataset's default, which is all where it has none.
        dataset: Whose samples they are.

    Raises:
        UserError: if the dataset has not so many, or it is no number.
    """
    if n is None and dataset.name in data.DATASETS:
        n = data.DATASETS[dataset.name].default_n
    if n in (None, "all"):
        return len(dataset)
    count = whole_number(n)
    if count is None or not 1 <= count <= len(dataset):
        raise UserError(f"n must be 1 to {len(dataset)}, the size of the {dataset.name} test set, not {n}")
    return count


def checked_seed(seed: object) -> int:
    """`seed` if it is one of random draws.

    Raises:
        UserError: if it is not a whole number from 0 to 2**63 - 1.
    """
    number = whole_number(seed)
    if number is None or not 0 <= number < 2**63:
        raise UserError(f"seed must be a whole number from 0 to 2**63 - 1, not {seed}")
    return number


def whole_number(value: object) -> int | None:
    """A whole number of any type, NumPy's too, as an int; None for anything else, a bool among it."""
    return None if isinstance(value, bool) or not isinstance(value, Integral) else int(value)


def _fitting(attacked: list[Perturbation], dataset: data.Dataset) -> list[Perturbation]:
    """The attacks, none of which asks for more classes or a larger ball than the dataset has."""
    for perturbation in attacked:
        attacks.check_fits(perturbation, dataset.classes, dataset.images[0].size)
    return attacked


def _place_by_cost(cell: Cell) -> tuple[bool, int]:
    """By passes and not by `cost`, so that single models and ensembles have one order."""
    return cell.perturbation.kind == "attack", attacks.passes(cell.perturbation)


def _plugin(perturbation: Perturbation) -> dict[str, str]:
    """The code of the plug-in that an attack or a corruption is of, if it is of one."""
    registries: dict[str, Registry] = {"attack": attacks.ATTACKS, "corruption": corruptions.CORRUPTIONS}
    registry = registries.get(perturbation.kind)
    return registry.code(perturbation.name) if registry else {}
