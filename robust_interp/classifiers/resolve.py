"""Make targets of names and options: the entry point of this package.

`resolve` passes each name to the module for its kind, which makes a target of it:

* a name of the zoo, a glob or 'all': `zoo_names`
* ``timm:NAME``, ``hf:NAME``, ``robustbench:NAME``: `prefixes`
* ``package.module:factory``, with any other word before the colon: `python_modules`
* a folder or a file: `files`
* a torch module: `target`; an `Ensemble` object, or an ensemble of any of these: `ensembles`
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from robust_interp import data, zoo
from robust_interp.classifiers.ensemble import Ensemble
from robust_interp.classifiers.ensembles import (
    EnsembleOptions,
    from_ensemble,
    make_ensembles,
    member_names,
    named_ensembles,
)
from robust_interp.classifiers.files import from_path, is_own_folder, is_path
from robust_interp.classifiers.objects import as_checkpoint
from robust_interp.classifiers.prefixes import PREFIXES, TIMM_PLACES
from robust_interp.classifiers.python_modules import from_python
from robust_interp.classifiers.target import Context, LoadAttempts, Target, from_module
from robust_interp.classifiers.zoo_names import NO_ATTEMPTS, from_zoo
from robust_interp.core.csv_text import escape_csv_value
from robust_interp.core.errors import RandomModelError, UserError
from robust_interp.core.paths import expanded, resolved
from robust_interp.core.registry import is_glob
from robust_interp.core.work import ProgressCallback, no_progress

_PREFIXED = re.compile(r"(?![A-Za-z]:[\\/])(?P<prefix>[\w.-]+):(?P<rest>.+)", re.DOTALL)


@dataclass(frozen=True)
class ResolveOptions:
    """Options of the models besides their names. None stands for the default.

    Attributes:
        zoo: A folder of checkpoints in addition to the usual ones.
        only_zoo: Whether to look for checkpoints only in that folder.
        checkpoint: A weights file for the one registered name, ``timm:NAME`` or factory in the names.
        mean: Per-channel mean to normalise the images with, in [0, 1] pixels, for models not from the zoo;
            None takes the model's own.
        std: Per-channel standard deviation, as `mean`.
        weights_key: Key of the state dict in a weights file with several, for models not from the zoo.
        seeds: Train seeds to take from the zoo; None takes all.
        ensembles: Whether the train seeds of a model also form an ensemble.
        ensemble: More ensembles; each is a text of names joined by ``+``.
        average: What the ensembles average: ``probabilities`` or ``logits``.
        attacks: Values of `Ensemble.attack`; there is one ensemble for each.
        eot: Number of draws over which random models are attacked and classified; 0 refuses random models.
        seed: Seed of these draws.
        check_each: Whether to check each checkpoint of the zoo in full. If not, one of those that differ only
            in their weights is checked in full, and the others with one forward pass.
    """

    zoo: str | None = None
    only_zoo: bool = False
    checkpoint: str | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    weights_key: str | None = None
    seeds: Sequence[int] | None = None
    ensembles: bool = True
    ensemble: str | Sequence[str] = ()
    average: str | None = None
    attacks: str | Sequence[str] | None = None
    eot: int = 0
    seed: int = 0
    check_each: bool = False


OnRandom = Callable[[str, RandomModelError], None]


def refuse(name: str, error: RandomModelError) -> None:
    """Raise the error: the default of `on_random`."""
    raise error


@contextmanager
def _random_ones(name: str, on_random: OnRandom) -> Iterator[None]:
    try:
        yield
    except RandomModelError as error:
        on_random(name, error)


def resolve(
    models: Sequence[str] | Mapping[str, nn.Module] | None,
    options: ResolveOptions,
    dataset: data.Dataset,
    progress: ProgressCallback = no_progress,
    on_random: OnRandom = refuse,
    tried: LoadAttempts = NO_ATTEMPTS,
) -> list[Target]:
    """Return the targets for the given names, without duplicates, and their ensembles.

    An object, a factory or a weights file is built and checked on this data set here, a checkpoint of the zoo
    only when it is loaded.

    Args:
        models: Names, or modules by name; None takes the members of `options.ensemble`, or else 'all'.
        options: Options of the models.
        dataset: The data set that the models are measured on.
        progress: Called with the progress of reading the zoo's checkpoints.
        on_random: Called with name and error for each random model that is refused. If it returns, the model
            is left out.
        tried: Results of earlier attempts to load targets. A checkpoint that failed is left out with
            a note, unless it is named itself.

    Raises:
        UserError: if a model cannot be found, loaded or measured, or an option does not fit the models.
    """
    if models is not None and not models:
        raise UserError("no model given; use 'all' for every checkpoint of the data set")
    averaging = _averaging(options)
    are_objects = isinstance(models, Mapping)
    found = (
        _objects(models, options, dataset, on_random)
        if isinstance(models, Mapping)
        else _named(models, options, averaging, dataset, progress, on_random, tried)
    )
    for named in _listed(options.ensemble):
        found += named_ensembles(named, found, averaging)
    for target in found:
        _check_name(target.card.model)
    own = are_objects and not options.ensemble  # Ensemble objects have their own settings
    if (options.average or options.attacks) and (own or all(target.card.members == 1 for target in found)):
        raise UserError("ensemble_average and ensemble_attack need an ensemble: set ensembles or ensemble")
    if options.eot and not any(target.card.eot for target in found):
        raise UserError("eot needs a random model: all of these give the same logits each time")
    return found


def _check_name(name: str) -> None:
    """Refuse a name that is blank or not printable, or that a spreadsheet would read as a formula."""
    if not name.isprintable() or not name.strip():
        raise UserError(f"a model's name must be one line of text, not {name!r}")
    if escape_csv_value(name) != name:
        raise UserError(f"a model's name must not begin as a formula of a spreadsheet does, as {name!r} does")


def _objects(
    modules: Mapping[str, nn.Module], options: ResolveOptions, dataset: data.Dataset, on_random: OnRandom
) -> list[Target]:
    _refuse_idle(options, ("zoo", "only_zoo", "checkpoint", "weights_key", "seeds"), "model objects")
    context = Context(dataset, mean=options.mean, std=options.std, eot=options.eot, seed=options.seed)
    found = []
    for name, model in modules.items():
        with _random_ones(name, on_random):
            if type(model) is Ensemble:
                found.append(from_ensemble(name, model, context))
            else:
                found.append(as_checkpoint(from_module(name, model, context), model, context))
    return found


def _named(
    models: Sequence[str] | None,
    options: ResolveOptions,
    averaging: EnsembleOptions,
    dataset: data.Dataset,
    progress: ProgressCallback,
    on_random: OnRandom,
    tried: LoadAttempts,
) -> list[Target]:
    names = models or tuple(name for named in _listed(options.ensemble) for name in member_names(named))
    names = _for_checkpoint(names) if options.checkpoint else names or ("all",)
    of_the_zoo = [name for name in names if is_of_the_zoo(name)]
    others = [name for name in names if name not in of_the_zoo]
    if not of_the_zoo:
        _refuse_idle(options, ("seeds",), "models that are not from the zoo")
    if all(name in of_the_zoo or is_own_folder(name) for name in names):
        _refuse_idle(options, ("mean", "std", "weights_key"), "models from the zoo")
    if not options.checkpoint and not any(map(_has_weights_file, others)):
        _refuse_idle(options, ("weights_key",), "models without a weights file of yours")
    if others and all(name.startswith("robustbench:") for name in names):
        _refuse_idle(options, ("mean", "std"), "RobustBench's models, which normalise their input")
    found = _of_the_zoo(of_the_zoo, options, averaging, dataset, progress, tried) if of_the_zoo else []
    return _once([*found, *_others(others, options, dataset, on_random)])


def _prefixed(name: str) -> re.Match | None:
    """Match ``prefix:rest``; None for any other name, such as an existing path with a colon."""
    found = _PREFIXED.fullmatch(name)
    is_there = "/" in name and found and found["prefix"] not in PREFIXES and expanded(name).exists()
    return None if is_there else found


def _has_weights_file(name: str) -> bool:
    """Whether a name may refer to a file with several state dicts."""
    return not _prefixed(name) or name.startswith(tuple(f"timm:{place}:" for place in TIMM_PLACES))


def is_of_the_zoo(name: str) -> bool:
    """Return whether a name refers to the zoo: an architecture, a checkpoint's name, a glob or 'all'."""
    return not _prefixed(name) and not is_path(name)


def _of_the_zoo(
    names: Sequence[str],
    options: ResolveOptions,
    averaging: EnsembleOptions,
    dataset: data.Dataset,
    progress: ProgressCallback,
    tried: LoadAttempts,
) -> list[Target]:
    found: list[Target] = []
    candidates = _candidates(names, options, dataset)
    for seeds_of_one in from_zoo(
        names, candidates, options.seeds, dataset, progress, tried, None if options.check_each else {}
    ):
        found += seeds_of_one
        if options.ensembles and len(seeds_of_one) > 1:
            found += make_ensembles(seeds_of_one, averaging)
    return found


def _candidates(names: Sequence[str], options: ResolveOptions, dataset: data.Dataset) -> list[zoo.Checkpoint]:
    """Return the checkpoints for a data set: its own, or for a user's own images those that fit them.

    Raises:
        UserError: if there is none, or the names match checkpoints of several data sets.
    """
    if dataset.name in data.DATASETS:
        return zoo.checkpoints_for(dataset.name, options.zoo, options.only_zoo)
    fit = zoo.checkpoints_that_fit(
        dataset.classes, dataset.channels, dataset.name, options.zoo, options.only_zoo
    )
    trained_on = sorted({checkpoint.dataset for checkpoint in zoo.select(names, fit)})
    if len(trained_on) > 1:
        raise UserError(
            f"the checkpoints were trained on {' and '.join(trained_on)}: name those of one, such as "
            f"'*.{trained_on[0]}_*'"
        )
    return fit


def _others(
    names: Iterable[str], options: ResolveOptions, dataset: data.Dataset, on_random: OnRandom
) -> list[Target]:
    """Make the targets of names that are not from the zoo, in order, without duplicates.

    Targets with the same label are renamed to the names that the user typed.
    """
    once: dict[str | Path, str] = {}
    for name in names:
        once.setdefault(name if _prefixed(name) else resolved(expanded(name)), name)
    context = Context(
        dataset,
        mean=options.mean,
        std=options.std,
        weights_key=options.weights_key,
        eot=options.eot,
        seed=options.seed,
    )
    taker = _takes_checkpoint(list(once.values())) if options.checkpoint else None
    found = {}
    for name in once.values():
        checkpoint = expanded(options.checkpoint) if options.checkpoint and name == taker else None
        with _random_ones(name, on_random):
            found[name] = _other(name, replace(context, checkpoint=checkpoint))
    labels = Counter(target.card.label for target in found.values())
    return [
        target if labels[target.card.label] == 1 or target.card.recipe else _called(name, target)
        for name, target in found.items()
    ]


def _other(name: str, context: Context) -> Target:
    prefixed = _prefixed(name)
    if prefixed is None:
        return from_path(expanded(name), context)
    if prefixed["prefix"] in PREFIXES:
        return PREFIXES[prefixed["prefix"]](prefixed["rest"], context)
    return from_python(name, context)


def _called(name: str, target: Target) -> Target:
    """Rename a target to the name that the user typed."""
    return replace(target, card=replace(target.card, model=name))


def _once(found: Iterable[Target]) -> list[Target]:
    """Remove duplicates: a folder named by its path may also be in the zoo."""
    once: dict[str, Target] = {}
    for target in found:
        once.setdefault(target.key, target)
    return list(once.values())


def _for_checkpoint(names: Sequence[str]) -> Sequence[str]:
    """Return the names for ``--checkpoint``: a single registered name stands for ``timm:NAME``."""
    if len(names) != 1 or names[0] == "all" or is_glob(names[0]) or not is_of_the_zoo(names[0]):
        return names
    return [f"timm:{names[0]}"]


def _takes_checkpoint(names: Sequence[str]) -> str:
    of_timm = [name for name in names if name.startswith("timm:")]
    takers = of_timm or list(filter(_is_factory, names))
    if len(takers) != 1:
        raise UserError(
            "--checkpoint needs exactly one registered model in --models, given as NAME, timm:NAME or "
            "package.module:factory"
        )
    return takers[0]


def _is_factory(name: str) -> bool:
    prefixed = _prefixed(name)
    return prefixed is not None and prefixed["prefix"] not in PREFIXES


def _refuse_idle(options: ResolveOptions, names: Iterable[str], what: str) -> None:
    """Refuse an option that would be ignored."""
    for name in names:
        if (value := getattr(options, name)) is not None and value is not False:  # it may be an array
            raise UserError(f"{name} cannot be used with {what}")


def _averaging(options: ResolveOptions) -> EnsembleOptions:
    usual = EnsembleOptions()
    views = usual.attacks if options.attacks is None else _listed(options.attacks)
    if not views:
        raise UserError("ensemble_attack is empty; use white-box to attack the ensemble itself")
    return EnsembleOptions(options.average or usual.average, views)


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([names] if isinstance(names, str) else names))
