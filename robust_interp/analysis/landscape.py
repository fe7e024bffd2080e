"""Loss and predicted class around an image, along its FGSM direction and a random orthogonal one.

The classifier is evaluated at the points x + a d + b e around an image x. Here d is the sign of the gradient
of the cross-entropy at x, so a is an FGSM radius in pixels; e is a random direction of the same length,
orthogonal to d. The points are not clipped to [0, 1], to keep lines straight and directions orthogonal.
Products and convolutions are computed in float32, not in TF32, as in the benchmark.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from scipy.spatial import ConvexHull
from torch import Tensor, nn

from robust_interp.core import precision
from robust_interp.core.errors import UserError
from robust_interp.core.work import ProgressCallback, no_progress, with_progress

BATCH = 512  # points in a forward pass


@precision.float32()
def fgsm_direction(classifier: nn.Module, image: Tensor, label: int) -> Tensor:
    """Return the sign of the gradient of the cross-entropy at an image (C, H, W) in [0, 1].

    Args:
        classifier: Maps (N, C, H, W) pixels to logits.
        label: The class of the image.

    Raises:
        UserError: if the gradient is zero everywhere or not finite.
    """
    pixels = image[None].clone().requires_grad_()
    loss = F.cross_entropy(classifier(pixels), torch.tensor([label], device=image.device))
    (gradient,) = torch.autograd.grad(loss, pixels)
    if not gradient.isfinite().all() or not gradient.any():
        state = "zero everywhere" if gradient.isfinite().all() else "not finite"
        raise UserError(f"the gradient at this image is {state}: there is no FGSM direction")
    return gradient[0].sign()


def orthogonal_direction(direction: Tensor, seed: int, sample: int) -> Tensor:
    """Return a random direction (C, H, W), orthogonal to `direction` and of the same length.

    It consists of random signs minus their projection on `direction`. The signs depend only on the seed and
    on `sample`, the index of the image.

    Raises:
        UserError: if the image has a single element.
    """
    rng = np.random.default_rng((seed, zlib.crc32(b"landscape"), sample))
    along = direction.cpu().double()
    signs = torch.from_numpy(rng.choice([-1.0, 1.0], size=tuple(direction.shape)))
    across = signs - (signs * along).sum() / along.square().sum() * along
    if across.norm() < 1e-6 * signs.norm():
        raise UserError("a landscape needs images with more than one pixel")
    return (across * (along.norm() / across.norm())).to(direction)


def directions(
    classifiers: Mapping[str, nn.Module], image: Tensor, label: int, sample: int, shared: bool, seed: int = 0
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the FGSM direction and an orthogonal direction, (C, H, W) each, for each classifier by name.

    Args:
        classifiers: Classifiers by name; they map pixels (N, C, H, W) in [0, 1] to logits.
        image: Image (C, H, W) in [0, 1].
        label: Class of the image.
        sample: Index of the image in the data set.
        shared: Whether all classifiers use the directions of the first one.
        seed: Seed of the orthogonal directions.

    Raises:
        UserError: if a gradient is zero everywhere or not finite.
    """
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name, classifier in classifiers.items():
        if shared and found:
            found[name] = next(iter(found.values()))
            continue
        along = fgsm_direction(classifier, image, label)
        found[name] = along, orthogonal_direction(along, seed, sample)
    return found


def unit_ball(along: Tensor, across: Tensor) -> np.ndarray:
    """Return the corners (K, 2) of the part of a plane in the Linf ball of radius 1, counter-clockwise.

    A point (a, b) of the plane is in the ball if |a d + b e| <= 1 for each pixel's pair (d, e). These strips
    meet in a polygon. Only the pairs on the convex hull of all ±(d, e) bound it, and each two neighbours on
    the hull meet in a corner: a d + b e = 1 for both.

    Args:
        along: The direction d (C, H, W).
        across: The direction e (C, H, W), no multiple of d.
    """
    pairs = torch.stack([along.flatten(), across.flatten()], dim=1).double().cpu().numpy()
    points = np.unique(np.concatenate([pairs, -pairs]), axis=0)
    hull = points[ConvexHull(points).vertices]
    return np.array([np.linalg.solve(two, np.ones(2)) for two in np.stack([np.roll(hull, 1, 0), hull], 1)])


def _padded(polygons: Sequence[np.ndarray]) -> np.ndarray:
    """Stack polygons (K, 2); the last corner of those with fewer corners is repeated."""
    most = max(map(len, polygons))
    return np.stack([np.pad(corners, ((0, most - len(corners)), (0, 0)), "edge") for corners in polygons])


@precision.float32()
@torch.no_grad()
def at_points(
    classifier: nn.Module, image: Tensor, label: int, moves: Tensor, weights: Tensor, batch_size: int = BATCH
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the cross-entropy and the predicted class at points around an image.

    Args:
        classifier: Maps pixels (N, C, H, W) in [0, 1] to logits.
        image: Image (C, H, W) in [0, 1].
        label: Class of the image.
        moves: D directions (D, C, H, W).
        weights: Coefficients (P, D): point p is image + Σ_d weights[p, d] moves[d].
        batch_size: Number of points per forward pass.

    Returns:
        Losses (P,) in nats, float64, and predicted classes (P,).
    """
    losses, predicted = [], []
    for part in weights.split(batch_size):
        logits = classifier(image + torch.einsum("pd,dchw->pchw", part.to(moves), moves))
        labels = torch.full((len(part),), label, device=logits.device)
        losses.append(F.cross_entropy(logits, labels, reduction="none").double().cpu())
        predicted.append(logits.argmax(1).cpu())
    return torch.cat(losses).numpy(), torch.cat(predicted).numpy()


def lines(
    classifiers: Mapping[str, nn.Module],
    images: Tensor,
    labels: Sequence[int],
    samples: Sequence[int],
    radii_255: np.ndarray,
    shared: bool,
    seed: int = 0,
    progress: ProgressCallback = no_progress,
) -> pd.DataFrame:
    """Compute `line` at many images.

    Args:
        classifiers: Classifiers by name.
        images: Images (N, C, H, W) in [0, 1].
        labels: Classes of the images.
        samples: Indices of the images in the data set.
        radii_255: Positions on the line in units of 1/255.
        shared: Whether all classifiers use the directions of the first one.
        seed: Seed of the orthogonal directions.
        progress: Progress callback.

    Returns:
        One row per image, classifier and position: sample, and the columns of `line`. An image is left out
        for all classifiers if one of them has a zero or non-finite gradient there.

    Raises:
        UserError: if no image is left.
    """
    frames, why = {}, None
    direction_of = next(iter(classifiers)) if shared else ""
    looked_at = list(zip(samples, images, labels, strict=True))
    for sample, image, label in with_progress(looked_at, progress, lambda one: f"image {one[0]}"):
        try:
            moves = directions(classifiers, image, label, sample, shared, seed)
        except UserError as error:
            why = error
            continue
        frames[sample] = line(classifiers, image, label, moves, radii_255, direction_of)
    if not frames:
        raise UserError(f"no landscape for any of the images: {why}")
    return pd.concat(frames, names=["sample"]).reset_index("sample").reset_index(drop=True)


def line(
    classifiers: Mapping[str, nn.Module],
    image: Tensor,
    label: int,
    moves: Mapping[str, tuple[Tensor, Tensor]],
    radii_255: np.ndarray,
    direction_of: str = "",
) -> pd.DataFrame:
    """Compute the loss along each classifier's FGSM direction.

    Args:
        classifiers: Classifiers by name.
        image: Image (C, H, W) in [0, 1].
        label: Class of the image.
        moves: The result of `directions`.
        radii_255: Positions on the line in units of 1/255.
        direction_of: Name of the classifier whose directions are shared; "" if they are not shared.

    Returns:
        One row per classifier and position: model, direction_of, eps_255, loss (nats), predicted.
    """
    weights = torch.from_numpy(radii_255 / 255)[:, None]
    frames = []
    for name, classifier in classifiers.items():
        losses, predicted = at_points(classifier, image, label, moves[name][0][None], weights)
        head = {"model": name, "direction_of": direction_of}
        frames.append(pd.DataFrame(head | {"eps_255": radii_255, "loss": losses, "predicted": predicted}))
    return pd.concat(frames, ignore_index=True)


def plane(
    classifiers: Mapping[str, nn.Module],
    image: Tensor,
    label: int,
    moves: Mapping[str, tuple[Tensor, Tensor]],
    radii_255: np.ndarray,
    direction_of: str = "",
    progress: ProgressCallback = no_progress,
) -> dict[str, np.ndarray]:
    """Compute the loss and the predicted class on a square grid over each classifier's two directions.

    Args:
        classifiers: Classifiers by name.
        image: Image (C, H, W) in [0, 1].
        label: Class of the image.
        moves: The result of `directions`.
        radii_255: R positions on both axes in units of 1/255.
        direction_of: Name of the classifier whose directions are shared; "" if they are not shared.
        progress: Progress callback.

    Returns:
        Arrays models (M,), label (), direction_of (), radii_255 (R,), loss and predicted (M, R, R), and ball
        (M, K, 2). Element [m, i, j] is at radii_255[i] along the orthogonal and radii_255[j] along the FGSM
        direction. ball[m] are the corners (FGSM, orthogonal) of `unit_ball`, the last perhaps repeated.
    """
    radii = torch.from_numpy(radii_255 / 255)
    across, along = torch.meshgrid(radii, radii, indexing="ij")
    weights = torch.stack([along.flatten(), across.flatten()], dim=1)
    found = [
        at_points(classifiers[name], image, label, torch.stack(moves[name]), weights)
        for name in with_progress(list(classifiers), progress)
    ]
    shape = (len(found), len(radii_255), len(radii_255))
    return {
        "models": np.array(list(classifiers)),
        "label": np.array(label),
        "direction_of": np.array(direction_of),
        "radii_255": radii_255,
        "ball": _padded([unit_ball(*moves[name]) for name in classifiers]),
        "loss": np.stack([losses for losses, _ in found]).reshape(shape),
        "predicted": np.stack([predicted for _, predicted in found]).reshape(shape),
    }
