"""PGD that stops for each image as soon as it is misclassified, and puts the next image in its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from robust_interp.attacks.probe import GradientProbe

LOOKED_EVERY = 5  # steps between checks of which images are done on a GPU; a check waits for the GPU


def pgd_until_broken(
    model: GradientProbe,
    images: Tensor,
    labels: Tensor,
    params: Mapping[str, Any],
    aimed: Tensor | None = None,
) -> Tensor:
    """Return the first misclassified iterate of PGD for each image, or the last iterate if there is none.

    The iterates are those of torchattacks' PGD. The images in a batch can be at different steps, so the
    batches stay full until fewer images than `model.max_batch` are left.

    Args:
        model: Maps images (n, C, H, W) in [0, 1] to logits (n, classes), at most `max_batch` at once.
        images: Clean images, (N, C, H, W) in [0, 1].
        labels: Labels, (N,).
        params: Parameters of the attack: eps, alpha and steps.
        aimed: Classes to aim at, (N,); None aims at any class but the label.
    """
    eps, alpha, steps = params["eps"], params["alpha"], params["steps"]
    sign = 1 if aimed is None else -1
    followed = labels if aimed is None else aimed
    found = (images + torch.empty_like(images).uniform_(-eps, eps)).clamp(0, 1)
    broken = torch.zeros_like(labels, dtype=torch.bool)
    taken = torch.zeros_like(labels)  # steps taken per image
    places = torch.arange(len(images), device=images.device)
    rows, waiting = places[: model.max_batch], places[model.max_batch :]
    passes = 0
    while len(rows):
        model.set_rows(rows)
        now = found[rows].requires_grad_()
        logits = model(now)
        (gradient,) = torch.autograd.grad(sign * F.cross_entropy(logits, followed[rows]), now)
        broken[rows] |= logits.detach().argmax(1) != labels[rows]
        moves = (~broken[rows] & (taken[rows] < steps)).view(-1, 1, 1, 1)
        now, clean = now.detach(), images[rows]
        change = (now + alpha * gradient.sign() - clean).clamp(-eps, eps)
        found[rows] = torch.where(moves, (clean + change).clamp(0, 1), now)
        taken[rows] += moves.flatten()
        passes += 1
        if rows.is_cpu or passes % LOOKED_EVERY == 0:
            rows = rows[~broken[rows] & (taken[rows] < steps)]
            free = model.max_batch - len(rows)
            rows, waiting = torch.cat([rows, waiting[:free]]), waiting[free:]
    return found
