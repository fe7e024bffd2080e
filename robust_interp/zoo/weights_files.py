"""A weights file that somebody else wrote -> a state dict of tensors; nothing that could hold code is run.

Reads .safetensors, and what torch.save wrote by torch's weights-only loader. Says what a file is when it is
none of these.
"""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from robust_interp.core.errors import UserError

Normalisation = tuple[list[float], list[float]]  # mean and std, a value per channel

WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "state_dict_ema", "model_ema", "ema")
PREFIXES = {"module", "model", "net", "_orig_mod"}  # of DataParallel, Lightning, torch.compile and the like
MEANS, STDS = {"mean", "mu", "new_mean"}, {"std", "sigma", "new_std"}  # buffers of a normalisation
MAGIC = {  # first bytes of files that are mistaken for weights
    b"version https://git-lfs": "is a git-lfs pointer, not the weights: fetch them with git lfs pull",
    b"\x1f\x8b": "is a gzip archive: unpack it first",
    b"\x89HDF": "is an HDF5 file, as Keras writes them, not weights of a torch model",
}


def file_and_entry(path: Path) -> tuple[Path, str | None]:
    """A weights file, and which of its state dicts ``FILE:ENTRY`` means; None for its only one."""
    name, colon, entry = path.name.rpartition(":")
    return (path.with_name(name), entry) if colon and name and not path.exists() else (path, None)


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file by name, out of their wrapper.

    Args:
        path: Of a .safetensors file, or of one that torch.save wrote; with ``:ENTRY`` for one of several
            state dicts in it, such as ``last.pth.tar:state_dict_ema``.

    Raises:
        UserError: saying what the file is, if it is anything else.
    """
    path, entry = file_and_entry(path)
    if not path.is_file():
        raise UserError(f"there is no checkpoint file {path}")
    if found := mistaken_for_weights(path):
        raise UserError(f"{path} {found}")
    try:
        if path.suffix == ".safetensors" or _starts_as_safetensors(path):
            content: Any = load_file(path)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of a pickle's protocol, to torch's developers
                content = _content(path)
    except Exception as error:  # where a file is damaged, its readers fail in many ways
        raise UserError(_unreadable(path, error)) from error
    if entry is not None:
        if not isinstance(content, dict) or entry not in content:
            raise UserError(f"{path} has no entry {entry!r}: it contains {_described(content)}")
        content = content[entry]
    return _tensors(path, content)


class _Unread:
    """Stands for an object of any class but a tensor's: takes whatever is said of it, and does nothing."""

    def __init__(self, *arguments: object, **named: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def _content(path: Path) -> Any:
    """What torch's weights-only loader reads; beside the weights a file may hold objects of other classes.

    A training script's options, say, or NumPy's numbers. Their classes are neither imported nor called.

    Raises:
        Exception: in any way, if it is no such file; if it is a whole model, the loader's refusal.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as refusal:
        try:
            foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
            with torch.serialization.safe_globals([(_Unread, name) for name in foreign]):
                content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception:  # with versions of torch before 2.6, and files of the older format
            raise refusal from None
        if not isinstance(content, dict) or any(isinstance(content.get(key), _Unread) for key in WRAPPERS):
            raise
        return content


def mistaken_for_weights(path: Path) -> str | None:
    """What a file is that cannot hold weights, as the end of a sentence; None if it may hold some."""
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
    """Whether there is a JSON header where safetensors has it, whatever the file is called."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= path.stat().st_size - 8 or file.read(1) != b"{":
            return False
        try:
            return isinstance(json.loads(b"{" + file.read(length - 1)), dict)
        except ValueError:
            return False


def _unreadable(path: Path, error: Exception) -> str:
    if pickled := re.search(r"GLOBAL ([\w.]+)", str(error)):
        return (
            f"{path} contains a pickled {pickled[1]}, as a whole saved model does, and can run code when "
            "it is opened: save its state_dict() instead"
        )
    reason, *_ = [*str(error).splitlines(), type(error).__name__]
    if "weights_only" in reason:  # torch advises to load it unsafely
        reason = "it is a pickle of other things than tensors; save a model's state_dict() instead"
    return f"cannot read {path}: {reason}"


def _tensors(path: Path, content: Any) -> dict[str, Tensor]:
    while isinstance(content, dict) and not _is_state(content):
        inside = [key for key in WRAPPERS if isinstance(content.get(key), dict)]
        if len(inside) > 1:
            raise UserError(
                f"{path} contains several state dicts ({', '.join(inside)}): say which is meant, as in "
                f"--checkpoint {path}:{inside[0]}"
            )
        if not inside:
            break
        content = content[inside[0]]
    if not isinstance(content, dict) or not _is_state(content):
        raise UserError(f"{path} contains {_described(content)}, not a state dict of tensors")
    return content


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


def fitted(state: dict[str, Tensor], model: nn.Module) -> tuple[dict[str, Tensor], Normalisation | None]:
    """A state dict under the names that `model` has for it, and the normalisation that comes with it.

    Taken off are prefixes that all keys share and the model's lack, such as DataParallel's ``module.`` and
    torch.compile's ``_orig_mod.``. Where the model has buffers for its normalisation and the state lacks
    them, the model's own are kept; so are BatchNorm's counters, which older files lack and nothing reads.

    Returns:
        The state dict, fit or not; and mean and std, a list per channel, of a normalisation layer that the
        state holds and the model lacks, or None.
    """
    own = model.state_dict()
    normalisation, state = _split_normalisation(_stripped(state, own), own)
    state = _stripped(state, own)
    if not normalisation:
        buffers = {name for name, _ in model.named_buffers()}
        state = {key: own[key] for key in own if key in buffers and _last(key) in MEANS | STDS} | state
    counters = {key: own[key] for key in own if _last(key) == "num_batches_tracked"}
    return counters | state, normalisation


def _stripped(state: dict[str, Tensor], own: Iterable[str]) -> dict[str, Tensor]:
    """Without the prefixes that all keys share, as long as that brings them nearer to the model's own."""
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
    """(mean, std) of a normalisation layer that the model lacks, or None; and the other tensors."""
    extra = {key: value for key, value in state.items() if key not in own and _last(key) in MEANS | STDS}
    means = [value for key, value in extra.items() if _last(key) in MEANS]
    stds = [value for key, value in extra.items() if _last(key) in STDS]
    has_its_own = any(_last(key) in MEANS | STDS for key in own)
    if len(means) != 1 or len(stds) != 1 or has_its_own:
        return None, state
    rest = {key: value for key, value in state.items() if key not in extra}
    return (means[0].flatten().tolist(), stds[0].flatten().tolist()), rest


def _last(key: str) -> str:
    return key.rpartition(".")[2]
