"""Turn a request into a plan: the cells to measure, their order, and the number of images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from robust_interp import attacks, corruptions, data
from robust_interp.benchmark.request import ATTACK_PRECISIONS, STRONG, STRONG_N, Request
from robust_interp.benchmark.settings import checked_seed, sample_count
from robust_interp.classifiers.ensemble import MEAN_GRADIENT, WHITE_BOX
from robust_interp.core.choices import PROTOCOLS
from robust_interp.core.errors import UserError
from robust_interp.core.registry import Registry, unknown
from robust_interp.results.columns import RANKED_BY
from robust_interp.store.cells import CLEAN, FLOAT32, Cell, ModelCard, Perturbation, Plan

PGD = {"Linf": RANKED_BY["final"], "L2": "pgd_l2"}  # norm -> PGD in it


def make_plan(
    request: Request, dataset: data.Dataset, corruptor: corruptions.Corruptor, cards: Sequence[ModelCard]
) -> Plan:
    """Make the plan with all cells that a request asks for.

    Args:
        request: The settings of the run.
        dataset: The data set of the request.
        corruptor: Gives the corrupted images.
        cards: The model cards, in the order of the cells.

    Raises:
        UserError: for an invalid attack, corruption, radius or number of images.
    """
    if request.protocol not in PROTOCOLS:
        raise UserError(f"protocol must be one of {', '.join(PROTOCOLS)}, not {request.protocol!r}")
    if (precision := request.attack_precision) not in ATTACK_PRECISIONS:
        known = ", ".join(ATTACK_PRECISIONS)
        raise UserError(f"attack_precision must be one of {known}, not {precision!r}")
    strong = _checked_strong(request)
    eps, defaults = radii(request, dataset)
    seed = checked_seed(request.seed)
    if not isinstance(request.round_to_8_bit, bool):
        raise UserError(f"round_to_8_bit must be True or False, not {request.round_to_8_bit!r}")

    def resolved(specs: str) -> list[Perturbation]:
        found = attacks.parse_attacks(specs, eps, defaults, seed, precision)
        return [replace(one, rounded=request.round_to_8_bit) for one in found]

    attacked = _fitting(resolved(request.attacks), dataset)
    asked = [CLEAN, *corruptions.parse_corruptions(request.corruptions, corruptor), *attacked]
    n = sample_count(request.n, dataset)
    cells = _cells(cards, asked, request.protocol, dataset)
    plan = Plan(dataset.name, n, request.protocol, tuple(cells), class_names=dataset.class_names)
    if strong is None:
        return plan
    stronger = _fitting(resolved(strong), dataset)
    balls = _strong_balls(stronger, attacks.passes(resolved(PGD["Linf"])[0]))
    usual = [*_in_balls(attacked, balls), *resolved(_lacking_pgd(attacked, balls))]
    return replace(plan, strong=_strong_plan(plan, request.strong_n, dataset, cards, [*usual, *stronger]))


def join_plans(plans: Sequence[Plan]) -> Plan:
    """Join plans of different models that are otherwise equal.

    Args:
        plans: The plans, at least one.
    """
    first, *_ = plans
    cells = tuple(cell for plan in plans for cell in plan.cells)
    return replace(
        first,
        cells=cells,
        strong=join_plans([plan.strong for plan in plans if plan.strong]) if first.strong else None,
    )


def _checked_strong(request: Request) -> str | None:
    """Return the attack specs of the columns ``strong_<eps>``; None for no such columns.

    Raises:
        UserError: if they are not a text, or only `strong_n` is given.
    """
    strong = request.strong
    if strong is not None and (not isinstance(strong, str) or not strong.strip()):
        raise UserError(f"strong must name attacks, such as {STRONG}, or be none, not {strong!r}")
    strong = None if strong is None or strong.strip() == "none" else strong
    if request.strong_n is not None and strong is None:
        raise UserError("strong_n needs strong")
    return strong


def _strong_balls(stronger: Sequence[Perturbation], work: int) -> list[Perturbation]:
    """Return one of the strong attacks for each ball; there is a column ``strong`` for each.

    Args:
        stronger: The attacks of the option `strong`.
        work: The passes of the usual PGD.

    Raises:
        UserError: if a ball has no attack that is stronger than PGD, or an attack has no radius.
    """
    # An attack that stops once an image is broken is a search: it counts as stronger even with fewer passes.
    harder = [one for one in stronger if attacks.may_stop_early(one) or attacks.passes(one) > work]
    refused = f"strong needs an attack stronger than pgd, such as {STRONG}, not"
    if not harder:
        raise UserError(f"{refused} {', '.join(dict.fromkeys(one.name for one in stronger))} alone")
    for one in stronger:
        if one.ball is None:  # it would be in no column
            raise UserError(f"strong needs attacks with an eps, and {one.name} has none")
        if one.ball not in [other.ball for other in harder]:
            raise UserError(f"{refused} {one.name} alone at {one.column}")
    return list({one.ball: one for one in harder}.values())


def _in_balls(attacked: Sequence[Perturbation], balls: Sequence[Perturbation]) -> list[Perturbation]:
    """Return those of the attacks that are untargeted PGD in one of these balls."""
    wanted = [one.ball for one in balls]
    untargeted = [one for one in attacked if "target" not in one.params]
    return [one for one in untargeted if one.ball in wanted and one.name == PGD.get(one.norm)]


def _lacking_pgd(attacked: Sequence[Perturbation], balls: Sequence[Perturbation]) -> str:
    """Return the specs of PGD in those of the balls where none of the attacks is PGD."""
    there = [one.ball for one in _in_balls(attacked, balls)]
    lacking = [one for one in balls if one.ball not in there and one.norm in PGD]
    return ",".join(f"{PGD[one.norm]}(eps={one.number('eps')!r})" for one in lacking) or "none"


def _strong_plan(
    plan: Plan,
    n: int | None,
    dataset: data.Dataset,
    cards: Sequence[ModelCard],
    attacked: Iterable[Perturbation],
) -> Plan:
    """Return the plan of the same models under PGD and stronger attacks, on its own number of images."""
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
    """Make a cell with the package versions of this process.

    Raises:
        UserError: if the package of the attack is not installed, or the attack cannot target the mean loss of
            an ensemble.
    """
    environment = {"precision": FLOAT32, "torch": str(torch.__version__)}
    if perturbation.kind == "attack":
        _check_view(card, perturbation)
        environment |= attacks.environment(perturbation) | _judge(card, perturbation)
    environment |= _plugin(perturbation)
    return Cell(
        card, dataset.name, dataset.fingerprint, perturbation, environment, metadata=dict(dataset.metadata)
    )


def _check_view(card: ModelCard, perturbation: Perturbation) -> None:
    """Raise UserError if the attack cannot target the part of an ensemble that it is computed on."""
    # The mean loss has an additional class, the largest one where the members disagree.
    if card.attacked_as == MEAN_GRADIENT and attacks.is_by_order(perturbation):
        raise UserError(
            f"{card.label}: {perturbation.column} looks for the class with the largest logit, so it cannot "
            f"use {MEAN_GRADIENT}: use {WHITE_BOX} or member:0, or attacks such as pgd and apgd_ce"
        )


def _judge(card: ModelCard, perturbation: Perturbation) -> dict[str, str]:
    """Return what is in the key of an attack on another classifier than the measured one; mostly nothing.

    Results without it may be wrong: there the attacked classifier said which images were broken, or an attack
    aimed at the additional class of the mean loss.
    """
    is_aimed = card.attacked_as == MEAN_GRADIENT and "target" in perturbation.params
    is_elsewhere = bool(card.attacked_as or perturbation.source)
    is_new = is_elsewhere and (attacks.is_judged(perturbation) or is_aimed)
    return {"judged_by": "measured classifier"} if is_new else {}


def cheap_first(cells: list[Cell]) -> list[Cell]:
    """Order cells for protocol ``worst``: cheap attacks first.

    An image counts only if it survives all attacks. So each attack skips the images that are misclassified
    when clean or broken by an earlier attack in the same ball.

    Args:
        cells: The cells of one target; exactly one of them is clean.
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
    """Return the radii of a run and the default attack parameters of its data set.

    Returns:
        The distinct radii in [0, 1] pixels in ascending order; and the parameters by attack, those of
        CIFAR-10 for a data set that is not registered.

    Raises:
        UserError: if the requested radii are invalid, or no attack has one of the parameters.
    """
    kind = data.DATASETS[dataset.name] if dataset.name in data.DATASETS else data.DATASETS["cifar10"]
    usual = tuple(value / 255 for value in kind.eps_255)
    _check_attack_defaults(kind)
    return _checked_radii(usual if request.eps is None else request.eps), kind.attack_defaults


def _check_attack_defaults(kind: data.DatasetType) -> None:
    """Refuse a default that no attack takes, such as a misspelt one.

    Installed plug-ins are imported only if no other attack takes it. One that cannot be imported might.
    """
    known: set[str] = set()
    names = sorted(attacks.ATTACKS, key=lambda name: attacks.ATTACKS.get_loaded(name) is None)
    for name in names:
        if known.issuperset(kind.attack_defaults):
            return
        try:
            known |= (attacks.ATTACKS.get_loaded(name) or attacks.ATTACKS[name]).defaults.keys()
        except UserError:
            return
    for key in kind.attack_defaults:
        if key not in known:
            raise UserError(
                f"data set {kind.name!r}, attack_defaults: {unknown('parameter', key, known)}; if an "
                "attack of a plug-in has it, load that, too"
            )


def _checked_radii(eps: object) -> list[float]:
    if isinstance(eps, str) or not isinstance(eps, Sequence) or not eps:
        raise UserError(f"eps must be a list of radii in [0, 1] pixels such as (2/255, 4/255), not {eps!r}")
    for value in eps:
        attacks.check_eps(value)
    return sorted(set(eps))


def _fitting(attacked: list[Perturbation], dataset: data.Dataset) -> list[Perturbation]:
    """Return the attacks unchanged, after checking that classes and image size suffice for each."""
    for perturbation in attacked:
        attacks.check_fits(perturbation, dataset.classes, dataset.shape)
    return attacked


def _place_by_cost(cell: Cell) -> tuple[bool, int]:
    """Sort by passes, not by `cost`, so that single models and ensembles have the same order."""
    return cell.perturbation.kind == "attack", attacks.passes(cell.perturbation)


def _plugin(perturbation: Perturbation) -> dict[str, str]:
    """Return the identity of the code of a plug-in's attack or corruption; empty for built-in ones."""
    registries: dict[str, Registry] = {"attack": attacks.ATTACKS, "corruption": corruptions.CORRUPTIONS}
    registry = registries.get(perturbation.kind)
    return registry.code(perturbation.name) if registry else {}
