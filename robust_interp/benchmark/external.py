"""Adversarial images that were made elsewhere: read, checked against the dataset's images, and judged.

They are no cells of the store. What a store holds can be measured again from its description; these rest on a
file. So their accuracies are in a table of their own, and are neither ranked nor averaged with our attacks.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from robust_interp import attacks, data
from robust_interp.attacks.runner import slack
from robust_interp.benchmark.runner import Runner
from robust_interp.classifiers.isolation import undisturbed
from robust_interp.classifiers.target import Target
from robust_interp.core import statistics
from robust_interp.core.errors import UserError
from robust_interp.core.files import make_folder, write_text
from robust_interp.data.dataset import RANGE_TOLERANCE
from robust_interp.data.npz import read_arrays
from robust_interp.results import rows
from robust_interp.results.columns import EXTERNAL_COLUMNS
from robust_interp.results.export import results_csv
from robust_interp.store import Outcome
from robust_interp.store.cells import attack_column, digest, in_255

NAME = "external"
FILE_NAME = f"{NAME}.csv"
_SAME = ("file_sha256", "model", "weights_sha256", "train_seed", "members", "dataset", "column")


@dataclass(frozen=True)
class External:
    """Images from a file, each within a ball around one of the dataset's.

    Attributes:
        images: (N, C, H, W), float32 in [0, 1].
        ids: Which of the dataset's samples they were made of, (N,).
        deltas: How far each is from that, (N,), in `norm` and [0, 1] pixels.
        eps: The radius, in [0, 1] pixels.
    """

    file: str
    sha256: str
    images: np.ndarray
    ids: np.ndarray
    deltas: np.ndarray
    norm: str
    eps: float

    @property
    def column(self) -> str:
        """What its accuracy is called: ``external_8``, ``external_l2_0.5``."""
        return attack_column(NAME, self.norm, in_255(self.eps) if self.norm == "Linf" else self.eps)


def read(path: Path, dataset: data.Dataset, norm: str, eps: float) -> External:
    """Read and check a file that `numpy.savez` wrote; nothing is unpickled.

    Args:
        path: With ``images`` (N, C, H, W), uint8 or floating point in [0, 1], and, unless they are the first
            N of the dataset, ``indices`` (N,): of which sample each was made. ``labels`` (N,) need not be
            there; if they are, they must be the dataset's.
        norm: ``Linf`` or ``L2``.
        eps: The radius that they must keep, in [0, 1] pixels.

    Raises:
        UserError: if it cannot be read, one of the images is not in [0, 1] or not within the radius, or
            labels in it are not those of the dataset.
    """
    eps = attacks.check_eps(eps, norm)
    arrays = read_arrays(path, ("images",), ("indices", "labels"))
    images = _in_range(path, arrays["images"], dataset)
    ids = _indices(path, arrays.get("indices"), len(images), dataset)
    if "labels" in arrays:
        _check_labels(path, arrays["labels"], dataset.labels[ids])
    changes = (images.astype(np.float64) - data.as_pixels(dataset.at(ids))).reshape(len(ids), -1)
    deltas = np.abs(changes).max(1) if norm == "Linf" else np.linalg.norm(changes, axis=1)
    if beyond := int((deltas > eps + slack(eps, norm)).sum()):
        told = f"{255 * deltas.max():.6g}/255" if norm == "Linf" else f"{deltas.max():.6g}"
        radius = f"{in_255(eps):g}/255" if norm == "Linf" else f"{eps:g}"
        raise UserError(
            f"{path}: {beyond} of {len(ids)} images are farther than {radius} ({norm}) from those of "
            f"{dataset.name}, the farthest {told} (sample {ids[deltas.argmax()]}): give the radius that they "
            "were made for, and indices if they are not the first images"
        )
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return External(path.name, sha256, images, ids, deltas, norm, eps)


def common_images(targets: Iterable[Target]) -> data.Dataset | None:
    """The images as all of these models take them; None for those of the run.

    Raises:
        UserError: if they take them in several ways.
    """
    first, *others = dict.fromkeys(target.dataset for target in targets)
    if others:
        raise UserError(
            "the models take the images in several ways: set one for all with --resize and --crop"
        )
    return first


def _in_range(path: Path, images: np.ndarray, dataset: data.Dataset) -> np.ndarray:
    shape = dataset.shape
    if images.ndim != 4 or images.shape[1:] != shape or not len(images):
        raise UserError(f"{path}: images must be (N, {', '.join(map(str, shape))}), not {images.shape}")
    if images.dtype != np.uint8 and not np.issubdtype(images.dtype, np.floating):
        raise UserError(f"{path}: images must be uint8 or floating point in [0, 1], not {images.dtype}")
    if images.dtype != np.uint8:
        outside = np.maximum(-images, images - 1).reshape(len(images), -1).max(1)
        if wrong := int((~(outside <= RANGE_TOLERANCE)).sum()):  # a NaN is wrong, too
            raise UserError(
                f"{path}: {wrong} of {len(images)} images have values outside [0, 1], from "
                f"{images.min():.6g} to {images.max():.6g}"
            )
    return data.as_pixels(images)


def _indices(path: Path, indices: np.ndarray | None, n: int, dataset: data.Dataset) -> np.ndarray:
    if indices is None:
        if n > len(dataset):
            raise UserError(f"{path}: {n} images without indices, and {dataset.name} has {len(dataset)}")
        return np.arange(n)
    if indices.shape != (n,) or not np.issubdtype(indices.dtype, np.integer):
        raise UserError(f"{path}: indices must be {n} whole numbers, not {indices.dtype} {indices.shape}")
    if indices.min() < 0 or indices.max() >= len(dataset):
        raise UserError(
            f"{path}: indices run from {indices.min()} to {indices.max()}, outside 0 to {len(dataset) - 1}"
        )
    if len(np.unique(indices)) < n:
        raise UserError(f"{path}: {n - len(np.unique(indices))} of {n} indices stand there more than once")
    return indices.astype(np.int64)


def _check_labels(path: Path, labels: np.ndarray, own: np.ndarray) -> None:
    if labels.shape != own.shape:
        raise UserError(f"{path}: labels must be {len(own)} classes, not {labels.dtype} {labels.shape}")
    if wrong := int((labels != own).sum()):
        raise UserError(
            f"{path}: {wrong} of {len(own)} labels are not those of the dataset's images: give indices, or "
            "leave labels out; those of the dataset count"
        )


def judge(external: External, target: Target, runner: Runner) -> dict:
    """The line of one model: its accuracy on the images, and on those of the dataset that they were made of.

    Raises:
        UserError: if the model cannot be measured on the runner's device.
    """
    classifier, ids = runner.load(target), external.ids
    with undisturbed(classifier):
        clean, right = (
            _right(runner, classifier, images, ids)
            for images in (data.as_pixels(runner.dataset.at(ids)), external.images)
        )
    first = len(ids) if np.array_equal(ids, np.arange(len(ids))) else ids.tolist()
    return {
        "file": external.file,
        "file_sha256": external.sha256,
        **rows.of_model(target.card),
        "dataset": runner.dataset.name,
        "subset_hash": digest([runner.dataset.fingerprint, first, *_content(runner.dataset, ids)])[:12],
        "n": len(ids),
        "column": external.column,
        "norm": external.norm,
        "eps_255": in_255(external.eps) if external.norm == "Linf" else None,
        "max_delta_255": round(255 * float(external.deltas.max()), 4),
        "clean": 100 * float(clean.mean()),
        **rows.of_right(right),
        "asr": statistics.attack_success(clean, right),
        "torch": torch.__version__,
        "device": str(runner.device),
        "source": NAME,
    }


def _content(dataset: data.Dataset, ids: np.ndarray) -> list[str]:
    """A hash of the images of these ids, where the fingerprint does not cover them."""
    hashes = dataset.content(ids)
    return [] if hashes is None else [hashlib.sha256(hashes.tobytes()).hexdigest()]


def _right(runner: Runner, classifier: torch.nn.Module, images: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Which images the classifier has right, (n,) bool, taken in batches that the device has memory for."""

    def in_batch(part: np.ndarray) -> np.ndarray:
        pixels = torch.from_numpy(images[part]).to(runner.device)
        found = runner.predictions(classifier, pixels, ids[part])
        return Outcome(*found, None, 0.0, "").correct(runner.dataset.labels[ids[part]])

    return np.concatenate(runner.in_parts(np.arange(len(ids)), in_batch))


def write(folder: Path, lines: Iterable[dict]) -> pd.DataFrame:
    """Add lines to the folder's external.csv; one of the same file, model and radius is replaced.

    Returns:
        The new lines.

    Raises:
        UserError: if the file that is there is another table.
    """
    new = pd.DataFrame(lines)[EXTERNAL_COLUMNS]
    path, text = make_folder(folder) / FILE_NAME, results_csv(new)
    if path.exists():
        kept = _kept(path)
        both = pd.concat([kept, _texts(text)], ignore_index=True)
        text = results_csv(both.drop_duplicates(list(_SAME), keep="last"))
    write_text(path, text)
    return new


def _texts(text: str) -> pd.DataFrame:
    """A CSV table as it is written, so that what is there is not rounded anew."""
    return pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)


def _kept(path: Path) -> pd.DataFrame:
    try:
        found = _texts(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if list(found) != EXTERNAL_COLUMNS:
        raise UserError(f"{path} is not a table of external images: move it away")
    return found
