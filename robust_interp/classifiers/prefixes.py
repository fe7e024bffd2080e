"""Make targets of names with a prefix, such as ``timm:NAME``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from robust_interp import zoo
from robust_interp.classifiers.files import WEIGHTS_IN_FOLDER, from_path, target_from_config
from robust_interp.classifiers.hugging_face import from_hugging_face
from robust_interp.classifiers.target import (
    Context,
    Target,
    check_fits,
    from_module,
    replaced_note,
    size_note,
    timm_cfg,
    to_channels_last,
)
from robust_interp.classifiers.weights import with_weights
from robust_interp.core.errors import UserError
from robust_interp.core.paths import expanded
from robust_interp.core.specs import OfEps, parse_spec
from robust_interp.core.texts import first_line_of
from robust_interp.zoo.pretrained import default_tag

TIMM_PLACES = ("local-dir", "hf-hub", "hf_hub")  # timm:PLACE:NAME, a folder of a config and weights

NOT_ARGUMENTS = {  # arguments of timm.create_model that the data set, the prefix or --checkpoint set
    *("pretrained", "checkpoint_path", "num_classes", "in_chans", "features_only"),
    *("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "scriptable", "exportable", "no_jit"),
}


def from_timm(text: str, context: Context) -> Target:
    """Make a target of a timm model, with the weights of ``--checkpoint`` or else timm's pretrained ones.

    Args:
        text: A timm name with optional arguments, ``NAME(key=value)``; or ``local-dir:FOLDER`` or
            ``hf-hub:NAME``, as in timm.
        context: The data set and the other settings of the model.

    Raises:
        UserError: if timm has no such model or weights, or they do not fit the data set.
    """
    where, colon, place = text.partition(":")
    if colon and where in TIMM_PLACES:
        if context.checkpoint:
            raise UserError(f"timm:{where}: has its own weights, which --checkpoint cannot replace")
        return from_path(expanded(place), context) if where == "local-dir" else _of_hub(place, context)
    name, arguments = parse_call(text)
    if taken := sorted(NOT_ARGUMENTS & arguments.keys()):
        raise UserError(f"timm:{text}: {taken[0]} cannot be set here")
    if context.checkpoint:
        model = zoo.create(name, num_classes=context.dataset.classes, in_chans=context.channels, **arguments)
        return with_weights(text, to_channels_last(model), context.checkpoint, context)
    _check_pretrained(name, context)
    try:
        model = zoo.create(name, pretrained=True, **arguments)
    except UserError as error:
        raise UserError(f"{error}; to load weights from a file, use --checkpoint FILE") from error
    context = context.preprocessed_for(timm_cfg(model))
    size = timm_cfg(model).get("input_size", context.dataset.shape)  # a wrapper has no cfg of its own
    notes = size_note(text, size, context) + replaced_note(text, model, context)
    return from_module(text, to_channels_last(model), context, notes=notes)


def from_robustbench(text: str, context: Context) -> Target:
    """Make a target of a RobustBench model for this data set, ``NAME`` or ``NAME(threat=L2)``.

    Raises:
        UserError: if RobustBench has no such model, or it does not fit the data set.
    """
    from robust_interp import robustbench_bridge

    name, arguments = parse_call(text)
    if other := sorted(arguments.keys() - {"threat"}):
        raise UserError(
            f"robustbench:{text}: the only argument is threat=Linf, L2 or corruptions, not {other[0]}"
        )
    chosen = name, context.dataset.name, arguments.get("threat", "Linf")
    model = robustbench_bridge.load(*chosen)
    context = replace(context, mean=None, std=None, takes_pixels=True)  # as RobustBench calls its models
    target = from_module(text, model, context, robustbench_bridge.sha256(*chosen))
    recorded = robustbench_bridge.published_clean(*chosen)
    return replace(target, card=replace(target.card, recorded_clean=recorded))


PREFIXES: dict[str, Callable[[str, Context], Target]] = {
    "timm": from_timm,
    "hf": from_hugging_face,
    "robustbench": from_robustbench,
}


def _of_hub(name: str, context: Context) -> Target:
    """Make a target of a timm model on the Hugging Face hub, ``NAME`` or ``NAME@REVISION``."""
    import huggingface_hub  # a dependency of timm
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    repository, _, revision = name.partition("@")

    def fetched(file: str) -> Path:
        return Path(huggingface_hub.hf_hub_download(repository, file, revision=revision or None))

    try:
        fetched(zoo.CONFIG)
        try:
            weights = fetched(WEIGHTS_IN_FOLDER[0])
        except LocalEntryNotFoundError:  # no network: the hub was not asked
            raise
        except EntryNotFoundError:
            weights = fetched(WEIGHTS_IN_FOLDER[1])
    except Exception as error:  # a download fails in many ways
        reason = first_line_of(error)
        raise UserError(f"timm:hf-hub:{name}: {reason}") from error
    return target_from_config(weights, f"hf-hub:{name}", context)


def parse_call(text: str) -> tuple[str, dict]:
    """Parse ``name`` or ``name(key=value, ...)``.

    Returns:
        The name, which may contain dots, and the arguments: numbers, words, True and False by key.

    Raises:
        UserError: if the arguments cannot be parsed.
    """
    name, bracket, rest = text.partition("(")
    try:
        arguments = parse_spec(f"model{bracket}{rest}").params if bracket else {}
    except UserError as error:
        raise UserError(f"{text}: {error}") from error
    if worded := [key for key, value in arguments.items() if isinstance(value, OfEps)]:
        raise UserError(f"{text}: {worded[0]} cannot be a fraction of eps")
    return name.strip(), arguments


def _check_pretrained(name: str, context: Context) -> None:
    """Refuse a model without pretrained weights that fit: timm would initialise layers at random."""
    import timm  # also registers our models

    zoo.check_registered(name)
    if "." not in name and (tag := default_tag(name)):  # whose weights pretrained=True means
        name = f"{name}.{tag}"
    try:
        cfg = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise UserError(f"timm:{name}: {error}") from error
    own_weights = "give a weights file of such a model with --checkpoint FILE"
    if cfg is None or not cfg.has_weights:
        raise UserError(f"timm has no weights for {name}: {own_weights}")
    check_fits(f"timm's pretrained {name}", cfg.num_classes, cfg.input_size[0], context, own_weights)
