"""External adversarial images: read them, compare them with the data set, and measure accuracies on them.

They are not cells of the store: a stored cell can be measured again from its description, but these images
depend on a file. So their accuracies have a separate table, and are not ranked or averaged with our attacks.
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
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.classifiers.target import Target
from robust_interp.core import statistics
from robust_interp.core.errors import UserError
from robust_interp.core.files import lock_file, make_folder, sha256_of, write_text
from robust_interp.data.dataset import RANGE_TOLERANCE
from robust_interp.data.npz import read_arrays
from robust_interp.results import rows
from robust_interp.results.columns import EXTERNAL, EXTERNAL_COLUMNS
from robust_interp.results.export import results_csv
from robust_interp.results.frames import frame_of
from robust_interp.store import Outcome
from robust_interp.store.cells import attack_column, digest, in_255

NAME = "external"
FILE_NAME = f"{NAME}.csv"
_SAME = ("file_sha256", "model", "weights_sha256", "train_seed", "members", "dataset", "column")


@dataclass(frozen=True)
class External:
    """Adversarial images from a file, each within a ball around an image of the data set.

    Attributes:
        file: Name of the file.
        sha256: Hash of the file.
        images: Adversarial images, (N, C, H, W), float32 in [0, 1].
        ids: Index of the original image in the data set for each image, (N,).
        deltas: Distance of each image from the original one, (N,), in `norm` and [0, 1] pixels.
        norm: ``Linf`` or ``L2``.
        eps: Radius of the ball, in [0, 1] pixels.
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
        """Name of the accuracy in tables: ``external_8``, ``external_l2_0.5``."""
        return attack_column(NAME, self.norm, in_255(self.eps) if self.norm == "Linf" else self.eps)


def read(path: Path, dataset: data.Dataset, norm: str, eps: float) -> External:
    """Read and check a file that `numpy.savez` wrote; nothing is unpickled.

    Args:
        path: An ``.npz`` file. It holds ``images`` (N, C, H, W), uint8 or floating point in [0, 1];
            ``indices`` (N,), the data set index of each original image, which may be missing for the first N
            images; and optionally ``labels`` (N,), which must equal those of the data set.
        dataset: The data set that the images were made from.
        norm: ``Linf`` or ``L2``.
        eps: Largest allowed distance from the original image, in [0, 1] pixels.

    Raises:
        UserError: if the file cannot be read, an image is not in [0, 1] or not within the radius, or its
            labels are not those of the data set.
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
            f"{dataset.name}, the farthest {told} (image {ids[deltas.argmax()]}): give the radius that they "
            "were made for, and indices if they are not the first images"
        )
    return External(path.name, sha256_of(path), images, ids, deltas, norm, eps)


def common_images(targets: Iterable[Target]) -> data.Dataset | None:
    """Return the data set in the preprocessing that all models share; None means the data set of the run.

    Raises:
        UserError: if the models use different preprocessing.
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
            f"{path}: {wrong} of {len(own)} labels are not those of the data set's images: give indices, or "
            "leave labels out; those of the data set count"
        )


def judge(external: External, target: Target, runner: Runner) -> dict:
    """Return the table row of one model: its accuracy on the external images and on the original ones.

    Raises:
        UserError: if the model cannot be measured on the runner's device.
    """
    classifier, ids = runner.load(target), external.ids
    with measurement_mode(classifier):
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
        **rows.accuracy_of(right),
        "asr": statistics.attack_success(clean, right),
        "torch": torch.__version__,
        "device": str(runner.device),
        "source": NAME,
    }


def _content(dataset: data.Dataset, ids: np.ndarray) -> list[str]:
    """Return a hash of these images, or an empty list if the fingerprint covers them."""
    hashes = dataset.content(ids)
    return [] if hashes is None else [hashlib.sha256(hashes.tobytes()).hexdigest()]


def _right(runner: Runner, classifier: torch.nn.Module, images: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return which images are classified correctly, (n,) bool, in batches that fit in memory."""

    def in_batch(part: np.ndarray) -> np.ndarray:
        pixels = torch.from_numpy(images[part]).to(runner.device)
        found = runner.predictions(classifier, pixels, ids[part])
        return Outcome(*found, None, 0.0, "").correct(runner.dataset.labels[ids[part]])

    return np.concatenate(runner.in_parts(np.arange(len(ids)), in_batch))


def write(folder: Path, lines: Iterable[dict]) -> pd.DataFrame:
    """Add rows to external.csv in a folder; rows of the same file, model and radius are replaced.

    Another process that adds rows to the same file is waited for.

    Returns:
        The new rows.

    Raises:
        UserError: if the existing file has other columns or cannot be read.
    """
    new = frame_of(list(lines), EXTERNAL)
    path, text = make_folder(folder) / FILE_NAME, results_csv(new)
    with lock_file(path.with_name(f".{FILE_NAME}.lock"), wait=True):
        if path.exists():
            both = pd.concat([_kept(path), _texts(text)], ignore_index=True)
            text = results_csv(both.drop_duplicates(list(_SAME), keep="last"))
        write_text(path, text)
    return new


def _texts(text: str) -> pd.DataFrame:
    """Read a CSV table as text, so that existing numbers are not rounded again."""
    return pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)


def _kept(path: Path) -> pd.DataFrame:
    try:
        found = _texts(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if list(found) != EXTERNAL_COLUMNS:
        raise UserError(f"{path} is not a table of external images: move it away")
    return found
