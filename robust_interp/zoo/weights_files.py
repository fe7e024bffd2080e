"""Read the state dict of a weights file from any source, without running code from it.

Reads .safetensors files, and files of torch.save with torch's weights-only loader. For any other file, the
error message says what it is.
"""

from __future__ import annotations

import json
import pickle
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from robust_interp.core.errors import UserError
from robust_interp.core.texts import first_line_of
from robust_interp.core.torch_internals import pickled_name, refused_classes, suggests_unsafe_loading

Normalisation = tuple[list[float], list[float]]  # mean and std per channel

# Keys of state dicts. If a file has several, the first is used: the weights before their moving average.
WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "state_dict_ema", "model_ema", "ema")
PREFIXES = {"module", "model", "net", "_orig_mod"}  # of DataParallel, Lightning, torch.compile and others
INSIDE = {"module", "_orig_mod"}  # prefixes that may also occur inside a key
MEANS, STDS = {"mean", "mu", "new_mean"}, {"std", "sigma", "new_std"}  # buffers of normalisation layers
MAGIC = {  # first bytes of files that are mistaken for weights
    b"version https://git-lfs": "is a git-lfs pointer, not the weights: fetch them with git lfs pull",
    b"\x1f\x8b": "is a gzip archive: unpack it first",
    b"\x89HDF": "is an HDF5 file, as Keras writes them, not weights of a torch model",
}


class WeightsFile(NamedTuple):
    """The content of a weights file.

    Attributes:
        tensors: The state dict.
        notes: Notes for a reader of the results.
    """

    tensors: dict[str, Tensor]
    notes: tuple[str, ...] = ()


def read_state(path: Path, key: str | None = None) -> WeightsFile:
    """Read the state dict of a weights file.

    Args:
        path: Path of a .safetensors file, or of a file written by torch.save.
        key: Which of several state dicts to read: its key in the file, such as ``state_dict_ema``, or the
            common prefix of its tensors' names. None takes the first that exists, in the order of WRAPPERS.

    Raises:
        UserError: if it is anything else; the message says what the file is.
    """
    if not path.is_file():
        raise UserError(f"there is no checkpoint file {path}")
    if found := mistaken_for_weights(path):
        raise UserError(f"{path} {found}")
    try:
        if path.suffix == ".safetensors" or _starts_as_safetensors(path):
            content: Any = load_file(path)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # on the pickle protocol
                content = _content(path)
    except Exception as error:  # damaged files cause many kinds
        raise UserError(_unreadable(path, error)) from error
    if key is None:
        return _tensors(path, content)
    return WeightsFile(_tensors(path, _chosen(path, content, key)).tensors)


def _chosen(path: Path, content: Any, key: str) -> Any:
    """Return the entry of a file with this key, or the tensors with this prefix, which is removed."""
    if isinstance(content, dict) and isinstance(content.get(key), dict):
        return content[key]
    try:
        tensors = _tensors(path, content).tensors
    except UserError:
        tensors = {}
    start = f"{key}."
    if found := {name.removeprefix(start): tensors[name] for name in tensors if name.startswith(start)}:
        return found
    raise UserError(f"{path} has no weights under {key!r}: it contains {_described(content)}")


class _Unread:
    """A placeholder for an object that is not a tensor; ignores its arguments and state."""

    def __init__(self, *arguments: object, **named: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def _content(path: Path) -> Any:
    """Read a file with torch's weights-only loader.

    Besides the weights, it may contain objects of other classes, such as a training script's options or NumPy
    numbers. Their classes are neither imported nor called.

    Raises:
        Exception: any exception of the loader, if it is not such a file or contains a whole pickled model.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as refusal:
        try:
            content = _without_classes(path, refusal)
        except Exception:  # also without the classes it cannot be read
            raise refusal from None
        states = isinstance(content, dict) and any(isinstance(content.get(key), dict) for key in WRAPPERS)
        if not states:
            raise
        return content


def _without_classes(path: Path, refusal: Exception) -> Any:
    """Read a file with a placeholder for each class that the loader refuses."""
    try:
        foreign = set(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except ValueError:  # the file format before torch 1.6
        foreign = refused_classes(refusal)
    while True:
        try:
            with torch.serialization.safe_globals([(_Unread, name) for name in foreign]):
                return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as again:
            more = refused_classes(again) - foreign
            if not more:
                raise
            foreign |= more


def mistaken_for_weights(path: Path) -> str | None:
    """Return what a file is that cannot contain weights, as the end of a sentence; None if it may."""
    with path.open("rb") as file:
        start = file.read(512)
    if not start:
        return "is empty"
    for magic, found in MAGIC.items():
        if start.startswith(magic):
            return found
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is an HTML page, probably of a failed download: download the weights again"
    if zipfile.is_zipfile(path) and _is_torchscript(path):
        return (
            "is a TorchScript archive, which contains code: save its state_dict(), or load it in Python with "
            "torch.jit.load and pass the module to evaluate"
        )
    return None


def _is_torchscript(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name for name in archive.namelist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def _starts_as_safetensors(path: Path) -> bool:
    """Whether a file, with any name, starts with a JSON header as safetensors does."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= path.stat().st_size - 8 or file.read(1) != b"{":
            return False
        try:
            return isinstance(json.loads(b"{" + file.read(length - 1)), dict)
        except ValueError:
            return False


def _unreadable(path: Path, error: Exception) -> str:
    if not _may_be_weights(path):
        return f"{path} is neither a .safetensors file nor one that torch.save wrote"
    if pickled := pickled_name(error):
        return (
            f"{path} contains a pickled {pickled}, as a whole saved model does, and can run code when "
            "it is opened: save its state_dict() instead"
        )
    reason = first_line_of(error)
    if suggests_unsafe_loading(reason):
        reason = "it is a pickle of other things than tensors; save a model's state_dict() instead"
    elif isinstance(error, LookupError | EOFError | struct.error | UnicodeError):
        reason = f"it is damaged or incomplete ({reason})"
    return f"cannot read {path}: {reason}"


def _may_be_weights(path: Path) -> bool:
    """Whether a file is called .safetensors or begins as a zip archive, a tar archive or a pickle does."""
    with path.open("rb") as file:
        start = file.read(2)
    return path.suffix == ".safetensors" or start == b"PK" or start[:1] == b"\x80" or tarfile.is_tarfile(path)


def _tensors(path: Path, content: Any) -> WeightsFile:
    notes: tuple[str, ...] = ()
    while isinstance(content, dict) and not _is_state(content):
        inside = [key for key in WRAPPERS if isinstance(content.get(key), dict) and content[key]]
        if not inside:
            break
        if others := inside[1:]:
            notes += (
                f"{path} holds the weights {' and '.join(inside)}: {inside[0]} is measured; to take others, "
                f"use --weights-key {others[0]}",
            )
        content = content[inside[0]]
    if not isinstance(content, dict) or not _is_state(content):
        raise UserError(f"{path} contains {_described(content)}, not a state dict of tensors")
    return WeightsFile(content, notes)


def _is_state(content: dict) -> bool:
    return bool(content) and all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items()
    )


def _described(content: object) -> str:
    kind = type(content).__name__
    if not isinstance(content, dict):
        return f"a {kind}"
    shown = ", ".join(map(str, list(content)[:5])) + (", ..." if len(content) > 5 else "")
    return f"a {kind} with {shown or 'nothing in it'}"


class MatchedState(NamedTuple):
    """A state dict with the keys of a model, as far as they could be matched.

    Attributes:
        state: The state dict.
        normalisation: Mean and std of a normalisation layer in the state dict that the model lacks, or None.
        notes: Notes for a reader of the results.
    """

    state: dict[str, Tensor]
    normalisation: Normalisation | None
    notes: tuple[str, ...]


def match_to_model(state: dict[str, Tensor], model: nn.Module) -> MatchedState:
    """Rename the keys of a state dict to those of a model, and split off a normalisation.

    - Prefixes that all keys share and the model lacks are removed, such as Lightning's ``model.``. So are the
      names of wrappers anywhere in a key, such as DataParallel's ``module`` and torch.compile's
      ``_orig_mod``.
    - If all of the model is under one prefix, other tensors, such as the weights of a loss, are left out.
    - Normalisation buffers and BatchNorm counters that the state dict lacks are taken from the model.
    - For tied tensors, one of their names is enough.

    Args:
        state: The state dict.
        model: The model that the state dict is for.

    Raises:
        UserError: if the state dict contains several such models.
    """
    own = model.state_dict()
    if state.keys() == own.keys():
        return MatchedState(state, None, ())
    state = _unwrapped(_stripped(state, own), own)
    normalisation, state = _split_normalisation(state, own)
    state = _unwrapped(_stripped(state, own), own)
    notes: tuple[str, ...] = ()
    needed = {key for key in own if not _may_lack(key)} - _tied(state, own).keys()
    if needed - state.keys() and (prefix := _holder(state, needed)):
        rest = sum(not key.startswith(prefix) for key in state)
        state = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        notes = (f"the weights under {prefix[:-1]} are measured; {rest} tensors beside them are left out",)
    if not normalisation:
        buffers = {name for name, _ in model.named_buffers()}
        state = {key: own[key] for key in own if key in buffers and _last(key) in MEANS | STDS} | state
    counters = {key: own[key] for key in own if _last(key) == "num_batches_tracked"}
    return MatchedState(counters | _tied(state, own) | state, normalisation, notes)


def _may_lack(key: str) -> bool:
    """Whether a state dict is complete without this key."""
    return _last(key) in MEANS | STDS | {"num_batches_tracked"}


def _unwrapped(state: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename tensors whose names differ from the model's only by names of wrappers."""
    names: dict[str, list[str]] = {}
    for key in own:
        if key not in state:
            names.setdefault(_bare(key), []).append(key)
    found: dict[str, Tensor] = {}
    for key, value in state.items():
        meant = names.get(_bare(key), [])
        found.setdefault(meant[0] if key not in own and len(meant) == 1 else key, value)
    return found if len(found) == len(state) else state  # two keys would become the same


def _bare(key: str) -> str:
    return ".".join(part for part in key.split(".") if part not in INSIDE)


def _holder(state: dict[str, Tensor], needed: set[str]) -> str:
    """Return the prefix, with its dot, under which a state dict has all needed keys; '' if there is none.

    If there are several, a prefix in WRAPPERS is preferred; otherwise their tensors must be equal.

    Raises:
        UserError: if there are several different models.
    """
    some = min(needed)
    ends = [key.removesuffix(some) for key in state if key.endswith(f".{some}")]
    whole = [prefix for prefix in ends if all(prefix + key in state for key in needed)]
    known = [prefix for name in WRAPPERS for prefix in whole if prefix == f"{name}."]
    first = (known or whole or [""])[0]
    alike = (torch.equal(state[other + key], state[first + key]) for other in whole for key in needed)
    if not known and not all(alike):
        names = [prefix[:-1] for prefix in whole]
        raise UserError(
            f"it holds several models, {', '.join(names)}: name one with --weights-key {names[0]}"
        )
    return first


def _tied(state: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that a state dict lacks, but has under another name of the same tied tensor."""
    names: dict[tuple, list[str]] = {}
    for key, value in own.items():
        if isinstance(value, Tensor) and value.numel() and not value.is_meta:
            place = value.data_ptr(), value.dtype, value.shape, value.stride()
            names.setdefault(place, []).append(key)
    found: dict[str, Tensor] = {}
    for alike in names.values():
        there = [key for key in alike if key in state]
        found |= {key: state[there[0]] for key in alike if there and key not in state}
    return found


def _stripped(state: dict[str, Tensor], own: Iterable[str]) -> dict[str, Tensor]:
    """Remove the prefixes that all keys share, as long as more keys match the model's."""
    own = set(own)
    state = {
        key: value for key, value in state.items() if key != "n_averaged" or key in own
    }  # AveragedModel's
    while True:
        prefixes = {key.partition(".")[0] for key in state if "." in key}
        if len(prefixes) != 1 or not all("." in key for key in state):
            return state
        shorter = {key.partition(".")[2]: value for key, value in state.items()}
        known = prefixes <= PREFIXES and not own & state.keys()
        if not known and len(own & shorter.keys()) <= len(own & state.keys()):
            return state
        state = shorter


def _split_normalisation(
    state: dict[str, Tensor], own: dict[str, Tensor]
) -> tuple[Normalisation | None, dict[str, Tensor]]:
    """Return (mean, std) of a normalisation layer that the model lacks, or None; and the other tensors."""
    extra = {key: value for key, value in state.items() if key not in own and _last(key) in MEANS | STDS}
    means = [value.flatten().tolist() for key, value in extra.items() if _last(key) in MEANS]
    stds = [value.flatten().tolist() for key, value in extra.items() if _last(key) in STDS]
    has_its_own = any(_last(key) in MEANS | STDS for key in own)
    is_one = (
        means and stds and all(mean == means[0] for mean in means) and all(std == stds[0] for std in stds)
    )
    if not is_one or has_its_own:
        return None, state
    rest = {key: value for key, value in state.items() if key not in extra}
    return (means[0], stds[0]), rest


def _last(key: str) -> str:
    return key.rpartition(".")[2]
