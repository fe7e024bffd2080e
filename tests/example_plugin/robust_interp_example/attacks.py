"""One step from a random start (Wong, Rice & Kolter, *Fast is better than free*, ICLR 2020)."""

import torch
from torch.nn import functional as F

from robust_interp.plugins import OfEps, attack


@attack(random=True)
def example_fast(model, images, labels, *, eps, step_size=OfEps(1.25)):
    delta = torch.empty_like(images).uniform_(-eps, eps)
    started = (images + delta).clamp(0, 1).requires_grad_()
    loss = F.cross_entropy(model(started), labels, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, started)
    delta = (started.detach() + step_size * gradient.sign() - images).clamp(-eps, eps)
    return (images + delta).clamp(0, 1)
