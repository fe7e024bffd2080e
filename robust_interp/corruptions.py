"""CIFAR-C corruptions: generated with the CIFAR parameters (not ImageNet-C's), or read as released.

A generated image depends on the seed, the corruption, the severity and the sample's id alone, so the first
n images are the same whatever n and the batch size are. As in the released arrays, the result is clipped
to [0, 1], scaled by 255 and truncated to uint8.
Source: Hendrycks & Dietterich, *Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations*, ICLR 2019, and its CIFAR-10-C generator's constants.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from robust_interp.cells import Perturbation
from robust_interp.data import DATASETS, Dataset, as_pixels
from robust_interp.errors import UserError
from robust_interp.registry import Registry, Spec, parse_spec, split_specs, unknown

SEVERITIES = (1, 2, 3, 4, 5)
# image in [0, 1] as float64, severity 1..5, generator -> corrupted image, not yet clipped
Corrupt = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]

CORRUPTIONS: Registry[Corrupt] = Registry("corruption", group="robust_interp.corruptions", holds=Callable)
GROUPS = {"noise": ("impulse_noise", "speckle_noise", "gaussian_noise", "shot_noise")}

# MD5 of the released CIFAR-10-C files.
RELEASED_MD5 = {
    "gaussian_noise": "ecaf8b9a2399ffeda7680934c33405fd",
    "shot_noise": "3a7239bb118894f013d9bf1984be7f11",
    "impulse_noise": "2090e01c83519ec51427e65116af6b1a",
    "speckle_noise": "ef00b87611792b00df09c0b0237a1e30",
}


def _corruption(function: Corrupt) -> Corrupt:
    return CORRUPTIONS.add(function.__name__, function)


@_corruption
def gaussian_noise(image, severity, rng):
    sd = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return image + rng.normal(scale=sd, size=image.shape)


@_corruption
def shot_noise(image, severity, rng):
    photons = (500, 250, 100, 75, 50)[severity - 1]
    return rng.poisson(image * photons) / photons


@_corruption
def impulse_noise(image, severity, rng):
    """Salt and pepper: a share of the values (per channel), half of them set to 0 and half to 1."""
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    draw = rng.random(image.shape)
    return np.where(draw < share / 2, 0.0, np.where(draw < share, 1.0, image))


@_corruption
def speckle_noise(image, severity, rng):
    sd = (0.06, 0.1, 0.12, 0.16, 0.2)[severity - 1]
    return image + image * rng.normal(scale=sd, size=image.shape)


def corrupt(images: np.ndarray, name: str, severity: int, ids, seed: int) -> np.ndarray:
    """Corrupt images (N, C, H, W), uint8 or float in [0, 1]; `ids` are the samples' ids. Returns uint8.

    All arithmetic is in float64, as the released arrays' was: truncation would show the difference.
    """
    function = CORRUPTIONS[name]
    stream = zlib.crc32(name.encode())  # a stream of its own, whatever else is registered
    out = np.empty(images.shape, dtype=np.uint8)
    for at, sample in enumerate(ids):
        rng = np.random.default_rng((seed, stream, severity, int(sample)))
        image = images[at] / 255.0 if images.dtype == np.uint8 else images[at].astype(np.float64)
        corrupted = function(image, severity, rng)
        out[at] = (corrupted.clip(0, 1) * 255).astype(np.uint8)
    return out


class Corruptor:
    """Where a run's corrupted images come from: released arrays if a folder is given, else the generator.

    Args:
        dataset: The clean images, in official order.
        seed: Seed of the generated corruptions.
        folder: Folder that holds the released ``<corruption>.npy`` and ``labels.npy``, or its parent.

    Raises:
        UserError: if the folder's labels are missing or not those of the dataset.
    """

    def __init__(self, dataset: Dataset, seed: int, folder: Path | None = None) -> None:
        self.dataset = dataset
        self.seed = seed
        self.folder = _released_folder(dataset, folder) if folder else None
        self.source = cache(self.source)  # hashing a released file takes a while
        self._chunk = lru_cache(maxsize=_CACHED_CHUNKS)(self._chunk)

    def source(self, name: str) -> str:
        """``generated@<seed>``, ``released``, or with the file's MD5 where there is no official one."""
        if self.folder is None:
            return f"generated@{self.seed}"
        _open_released(self.folder, name, self.dataset)
        found = _md5(self.folder / f"{name}.npy")
        known = RELEASED_MD5.get(name) if self.dataset.name == "cifar10" else None
        if known is None or len(self.dataset) != 10_000:
            return f"released(unverified, MD5 {found})"
        if found != known:
            raise UserError(f"{self.folder / f'{name}.npy'} is not the released file: its MD5 is not {known}")
        return "released"

    def pixels(self, perturbation: Perturbation, start: int, stop: int) -> np.ndarray:
        """Samples [start, stop) under a corruption, float32 NCHW in [0, 1]."""
        return as_pixels(self._chunk(perturbation.name, perturbation.params["severity"], start, stop))

    def _chunk(self, name: str, severity: int, start: int, stop: int) -> np.ndarray:
        if self.folder is None:
            clean = self.dataset.images[start:stop]
            return corrupt(clean, name, severity, range(start, stop), self.seed)
        size = len(self.dataset)
        rows = _open_released(self.folder, name, self.dataset)
        first = (severity - 1) * size  # the five severities are stacked
        return rows[first + start : first + stop].transpose(0, 3, 1, 2)


_CACHED_CHUNKS = 256  # 250 CIFAR images are 0.77 MB, so that many victims share what is generated once


def _released_folder(dataset: Dataset, folder: Path) -> Path:
    archive = DATASETS[dataset.name].corruption_archive if dataset.name in DATASETS else None
    if archive is None:
        raise UserError(f"there are no released corruption arrays for {dataset.name}")
    inner = folder / archive
    folder = inner if inner.is_dir() else folder
    labels = _open_array(folder / "labels.npy")
    if labels.shape != (5 * len(dataset),) or not np.array_equal(labels, np.tile(dataset.labels, 5)):
        raise UserError(f"{folder / 'labels.npy'} does not hold the {dataset.name} test labels five times")
    return folder


def _open_released(folder: Path, name: str, dataset: Dataset) -> np.ndarray:
    rows = _open_array(folder / f"{name}.npy")
    N, C, H, W = dataset.images.shape
    expected = (5 * N, H, W, C)
    if rows.shape != expected or rows.dtype != np.uint8:
        raise UserError(
            f"{folder / f'{name}.npy'} must be uint8 of shape {expected}, not {rows.dtype} {rows.shape}"
        )
    return rows


def _open_array(path: Path) -> np.ndarray:
    try:
        return np.lib.format.open_memmap(path, mode="r")  # reads nothing but .npy, and no pickled objects
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def resolve(text: str, corruptor: Corruptor) -> list[Perturbation]:
    """Perturbations for a comma-separated list of names, groups or ``name(severity=3)``; 'none' is empty.

    Without a severity all five are meant; what is named twice is measured once.

    Raises:
        UserError: for an unknown name or a severity that is not a whole number from 1 to 5.
    """
    if text.strip() == "none":
        return []
    found = {}
    for part in split_specs(text):
        spec = parse_spec(part)
        for name in GROUPS.get(spec.name, (spec.name,)):
            for severity in _severities(name, spec):
                found.setdefault((name, severity), None)
    if not found:
        raise UserError("no corruption named; say none to measure without")
    return [
        Perturbation(
            "corruption", name, f"{name}_{severity}", {"severity": severity}, source=corruptor.source(name)
        )
        for name, severity in found
    ]


def _severities(name: str, spec: Spec) -> tuple[int, ...]:
    if name not in CORRUPTIONS:
        raise unknown("corruption", name, [*CORRUPTIONS, *GROUPS])
    if unexpected := set(spec.params) - {"severity"}:
        raise UserError(f"{spec.name} has no parameter {min(unexpected)!r}; it takes severity=1 to 5")
    severity = spec.params.get("severity")
    if severity is None:
        return SEVERITIES
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise UserError(f"severity must be 1, 2, 3, 4 or 5, not {severity}")
    return (int(severity),)
