"""Measure the paper's stability argument: Jacobians of the blocks at real feature maps, growth over depth.

A block adds merge(x, f(x)) - x to its input. With one λ per block this is ρ(λ) f(x) - λ x (times
(1 - e^-λ)/λ in an exact step). The undamped system has the Jacobian J = ∂f/∂x, the damped one ρ(λ) J - λ.
Only Jacobian-vector products are computed, never an N x N matrix. All computations are in float64.
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from scipy.sparse.linalg import ArpackError, LinearOperator, eigs
from scipy.stats import t as student_t
from torch import Tensor, nn

from robust_interp.classifiers.classifier import Classifier
from robust_interp.core.blocks import places
from robust_interp.core.errors import UserError
from robust_interp.core.work import ProgressCallback, no_progress, with_progress
from robust_interp.models import Add, Branch, Damp, InterpolationNet, ScaledDamp
from robust_interp.models.network import Block, coefficient_of

Map = Callable[[Tensor], Tensor]


def jacobian_products(function: Map, x: Tensor) -> tuple[Map, Map]:
    """Return the maps v -> J v and u -> Jᵀ u for the Jacobian J of `function` at x.

    J v is computed as the derivative of the linear map u -> Jᵀ u (double backward). Both products reuse one
    graph. Here this is several times faster than torch.func.jvp, which decomposes BatchNorm at each call.
    """
    x = x.detach().requires_grad_()
    y = function(x)
    u = torch.zeros_like(y, requires_grad=True)
    (pulled,) = torch.autograd.grad(y, x, u, create_graph=True)
    return (
        lambda tangent: torch.autograd.grad(pulled, u, tangent, retain_graph=True)[0],
        lambda cotangent: torch.autograd.grad(y, x, cotangent, retain_graph=True)[0],
    )


@dataclass(frozen=True)
class Rightmost:
    """The eigenvalue with the largest real part, and its accuracy.

    Attributes:
        real: Its real part; NaN if the iteration did not converge.
        residual: |J v - ν v| / |ν| of the eigenpair; NaN if the iteration did not converge.
    """

    real: float
    residual: float


def rightmost(function: Map, x: Tensor, seed: int = 0, tol: float = 1e-4, restarts: int = 300) -> Rightmost:
    """Compute the rightmost eigenvalue of the Jacobian of `function` at x, with ARPACK's restarted Arnoldi.

    Args:
        function: Maps float64 tensors of the shape of x to the same shape.
        x: One feature map with at least 4 elements, float64.
        seed: Seed of the start vector.
        tol: Relative tolerance.
        restarts: Maximum number of restarts.
    """
    push, _ = jacobian_products(function, x)

    def multiply(vector: np.ndarray) -> np.ndarray:
        tangent = torch.from_numpy(np.ascontiguousarray(vector.real)).to(x).view_as(x)
        return push(tangent).flatten().cpu().numpy()

    N = x.numel()
    operator = LinearOperator((N, N), matvec=multiply, dtype=np.float64)
    start = np.random.default_rng(seed).standard_normal(N)
    if not multiply(start).any():  # J = 0, e.g. if no unit of a block is active: ARPACK cannot start
        return Rightmost(0.0, 0.0)
    try:
        values, vectors = eigs(operator, k=1, which="LR", v0=start, ncv=min(N, 40), tol=tol, maxiter=restarts)
    except ArpackError:  # no convergence, or non-finite numbers
        return Rightmost(math.nan, math.nan)
    value, vector = values[0], vectors[:, 0]
    image = multiply(vector.real) + 1j * multiply(vector.imag)
    scale = max(abs(value), np.finfo(float).tiny)
    return Rightmost(float(value.real), float(np.linalg.norm(image - value * vector) / scale))


def spectral_norm(
    function: Map, x: Tensor, seed: int = 0, tol: float = 1e-4, iterations: int = 200
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the largest singular value of the Jacobian of `function` at each x, by power iteration on JᵀJ.

    Args:
        function: Maps a batch (N, ...) to a batch; the rows must be independent.
        x: The points (N, ...), float64.
        seed: Seed of the start vectors.
        tol: Relative change per iteration below which a value counts as converged.
        iterations: Maximum number of iterations. A value that has not converged is a lower bound.

    Returns:
        The norms (N,), and a bool array (N,) that tells which of them converged.
    """
    generator = torch.Generator().manual_seed(seed)
    vector = _unit(torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device))
    push, pull = jacobian_products(function, x)
    values = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    converged = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for _ in range(iterations):
        pushed = push(vector)
        latest = _norm(pushed)
        converged = (latest - values).abs() <= tol * latest
        values = latest
        if converged.all():
            break
        vector = _unit(pull(pushed))
    return values.cpu().numpy(), converged.cpu().numpy()


def _norm(batch: Tensor) -> Tensor:
    return batch.flatten(1).norm(dim=1)


def _unit(batch: Tensor) -> Tensor:
    norms = _norm(batch).view(-1, *[1] * (batch.ndim - 1))
    return batch / norms.clamp(min=torch.finfo(batch.dtype).tiny)


# --- networks ---------------------------------------------------------------------------------------------


def in_float64(classifier: Classifier) -> Classifier:
    """Return a copy of a classifier in float64 and eval mode, frozen.

    Raises:
        UserError: if its model is not an `InterpolationNet`, whose blocks this module needs.
    """
    _network(classifier)
    return copy.deepcopy(classifier).double().eval().requires_grad_(False)


def _network(classifier: Classifier) -> InterpolationNet:
    if not isinstance(classifier.model, InterpolationNet):
        raise UserError(
            f"{classifier.name} is not a network of robust_interp.models: only those have known blocks"
        )
    return classifier.model


def damped_blocks(model: InterpolationNet) -> dict[str, Block]:
    """Return the blocks, by name, that have a λ in a damped network of this layout.

    These are the blocks with an identity shortcut, except the first block of the network.
    """
    _, *others = model.named_blocks()
    return {name: block for name, block in others if isinstance(block.shortcut, nn.Identity)}


def drift(block: Block) -> Map:
    """Return the map x -> merge(x, f(x)) - x: what the block adds to its input, before a final activation."""
    return lambda x: block.merge(x, block.branch(x)) - x


def is_first_order(block: Block) -> bool:
    """Whether the Jacobian of `drift` is ρ(λ) J - λ: a step of first order, with one λ for the block."""
    coefficient = coefficient_of(block)
    has_gate = coefficient is not None and coefficient.depends_on_input
    return type(block.merge) in (Add, Branch, Damp, ScaledDamp) and not has_gate


@torch.no_grad()
def states(classifier: Classifier, images: Tensor) -> dict[str, Tensor]:
    """Return the input of each block, by block name, and the output of the last block under "".

    Args:
        classifier: A classifier whose model is an `InterpolationNet`.
        images: Images (N, C, H, W) in [0, 1].
    """
    network = _network(classifier)
    x, found = network.stem(classifier.normalize(images)), {}
    for name, block in network.named_blocks():
        found[name] = x
        x = block(x)
    return found | {"": x}


def jacobians(
    classifier: Classifier,
    images: Tensor,
    ids: Sequence[int],
    seed: int = 0,
    progress: ProgressCallback = no_progress,
) -> pd.DataFrame:
    """Compute eigenvalues and norms of the blocks' Jacobians at the feature maps of a few images.

    Args:
        classifier: A classifier whose model is an `InterpolationNet`.
        images: Images (N, C, H, W) in [0, 1].
        ids: Indices of the images in the data set.
        seed: Seed of the start vectors.
        progress: Progress callback.

    Returns:
        One row per block and image: block, stage, depth, blocks, sample (the image's index); coefficient, the
        mean act(λ) there (NaN without λ); undamped and damped, the real part of the rightmost eigenvalue of
        the Jacobian J of the branch and of the Jacobian of `drift`, each with `_residual`, and NaN if not
        converged; norm, the spectral norm of the Jacobian of the whole block, with norm_converged; and
        first_order, see `is_first_order`.
    """
    classifier, images = in_float64(classifier), images.double()
    at, blocks = states(classifier, images), damped_blocks(_network(classifier))
    lines = []
    found_at = places(blocks)
    for name in with_progress(list(found_at), progress):
        block, place = blocks[name], found_at[name]
        norms, norms_converged = spectral_norm(block, at[name], seed)
        for i, sample in enumerate(ids):
            x = at[name][i : i + 1]
            found = {"undamped": rightmost(block.branch, x, seed), "damped": rightmost(drift(block), x, seed)}
            lines.append(
                {"block": name, **place, "sample": sample, "coefficient": _coefficient(block, x)}
                | {key: value.real for key, value in found.items()}
                | {f"{key}_residual": value.residual for key, value in found.items()}
                | {"norm": norms[i], "norm_converged": norms_converged[i]}
                | {"first_order": is_first_order(block)}
            )
    return pd.DataFrame(lines)


def _coefficient(block: Block, x: Tensor) -> float:
    coefficient = coefficient_of(block)
    return math.nan if coefficient is None else coefficient(x).mean().item()


def jacobian_summary(table: pd.DataFrame) -> pd.DataFrame:
    """Average over images and train seeds: one row per model and block.

    Args:
        table: Concatenated results of `jacobians`, with an additional column `model`.

    Returns:
        Columns model, block, coefficient, undamped, damped, norm, n (images times seeds), and not_converged:
        how many of the 3 n numbers did not converge. The means leave out such eigenvalues, but include such
        norms.
    """
    lines = []
    for (model, block), part in table.groupby(["model", "block"], sort=False):
        lost = part[["undamped", "damped"]].isna().sum().sum() + (~part["norm_converged"]).sum()
        means = part[["coefficient", "undamped", "damped", "norm"]].mean().to_dict()
        lines.append({"model": model, "block": block} | means | {"n": len(part), "not_converged": int(lost)})
    return pd.DataFrame(lines)


# --- growth over depth ------------------------------------------------------------------------------------


def growth(
    classifier: Classifier, images: Tensor, labels: Tensor, ids: Sequence[int], eps: float, seed: int = 0
) -> pd.DataFrame:
    """Measure how a small change of the image grows from block to block.

    Two changes of the same length are used: eps times random signs (drawn from the seed and the image's
    index), and FGSM, eps times the sign of the gradient of the cross-entropy. The pixels are not clipped.

    Args:
        classifier: A classifier whose model is an `InterpolationNet`.
        images: Images (N, C, H, W) in [0, 1].
        labels: Labels (N,).
        ids: Indices of the images in the data set.
        eps: Size of the change of a pixel, in [0, 1] pixels.
        seed: Seed of the random signs.

    Returns:
        One row per perturbation ("noise", "fgsm"), image and depth (number of blocks passed; 0 is the input
        x_0 of the first block): perturbation, sample (the image's index), depth, blocks, growth =
        |δ_n| / |δ_0|, and relative, the same ratio for |δ_n| / |x_n|, which does not depend on the scale of
        the features. NaN if the gradient is zero.
    """
    classifier, images = in_float64(classifier), images.double()
    before = list(states(classifier, images).values())
    lines = []
    for name, signs in (
        ("noise", random_signs(images, ids, seed)),
        ("fgsm", _signs(classifier, images, labels)),
    ):
        after = states(classifier, images + eps * signs).values()
        pairs = list(zip(before, after, strict=True))
        deltas = torch.stack([_norm(b - a) for a, b in pairs])  # (depth, N)
        relative = deltas / torch.stack([_norm(a) for a, _ in pairs])
        for depth, rows in enumerate(zip(deltas / deltas[0], relative / relative[0], strict=True)):
            head = {"perturbation": name, "depth": depth, "blocks": len(pairs) - 1}
            values = {"growth": rows[0].cpu().numpy(), "relative": rows[1].cpu().numpy()}
            lines.append(pd.DataFrame(head | {"sample": list(ids)} | values))
    return pd.concat(lines, ignore_index=True)


def random_signs(images: Tensor, ids: Sequence[int], seed: int) -> Tensor:
    """Return random ±1 shaped like `images`, drawn per image from the seed and its index in `ids`."""
    stream, shape = zlib.crc32(b"growth"), images.shape[1:]
    draws = [np.random.default_rng((seed, stream, i)).choice([-1.0, 1.0], size=tuple(shape)) for i in ids]
    return torch.from_numpy(np.stack(draws)).to(images)


def _signs(classifier: Classifier, images: Tensor, labels: Tensor) -> Tensor:
    pixels = images.clone().requires_grad_()
    loss = F.cross_entropy(classifier(pixels), labels.to(images.device), reduction="sum")
    return torch.autograd.grad(loss, pixels)[0].sign()


def growth_summary(table: pd.DataFrame) -> pd.DataFrame:
    """Compute geometric means over images, with 95 % intervals (Student's t of the logarithms).

    Args:
        table: Concatenated results of `growth`, with an additional column `model`. The logarithms of an image
            are first averaged over the train seeds, so that each image counts once.

    Returns:
        One row per model, perturbation and depth: model, perturbation, depth, blocks, n (images), and growth
        and relative, each with `_low` and `_high` (NaN for a single image).
    """
    keys = ["model", "perturbation", "depth", "blocks"]
    logs = table[[*keys, "sample"]].assign(growth=np.log(table["growth"]), relative=np.log(table["relative"]))
    images = logs.groupby([*keys, "sample"], sort=False).mean().dropna()
    lines = []
    for key, part in images.groupby(keys, sort=False):
        line = dict(zip(keys, key, strict=True)) | {"n": len(part)}
        for name in ("growth", "relative"):
            mean = part[name].mean()
            half = student_t.ppf(0.975, len(part) - 1) * part[name].std() / math.sqrt(len(part))
            ends = np.exp([mean, mean - half, mean + half]).tolist()
            line |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
        lines.append(line)
    return pd.DataFrame(lines)
