"""Several classifiers averaged into one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from robust_interp.core.choices import AVERAGES
from robust_interp.core.errors import UserError

WHITE_BOX, MEAN_GRADIENT = "white-box", "mean-gradient"

GRAPHS_KEPT = 2  # members without activation checkpointing, so that an ensemble of two is not slower


class Ensemble(nn.Module):
    """Several classifiers averaged into one: their mean probabilities or mean logits, (N, classes).

    `probabilities` gives log-probabilities, averaged in log space, so that the gradients of the other members
    are not lost to rounding next to a confident member. A gradient needs the activations of at most
    `GRAPHS_KEPT` members: the backward pass runs the other members a second time, with the same result.

    Args:
        members: Each maps the same images (N, C, H, W) to logits (N, classes).
        average: ``probabilities`` (of the softmax) or ``logits``.
        attack: What an attack on the ensemble targets: ``white-box`` (the ensemble itself), ``member:K`` (one
            member, counted from 0), or ``mean-gradient`` (the mean of the members' losses).
        name: Its name in messages.

    Raises:
        UserError: if there is no member or one is no module, or `average` or `attack` has another value.
    """

    def __init__(
        self,
        members: Sequence[nn.Module],
        average: str = AVERAGES[0],
        attack: str = WHITE_BOX,
        name: str = "ensemble",
    ) -> None:
        super().__init__()
        modules = _modules(members)
        check_ensemble(len(modules), average, attack, name)
        self.members = nn.ModuleList(modules)
        self.average = average
        self.attack = attack
        self.name = name

    def forward(self, images: Tensor) -> Tensor:
        return self.averaged(_each(self.members, images))

    def averaged(self, each: Tensor) -> Tensor:
        """Average the members' logits (members, N, classes) to the ensemble's logits (N, classes)."""
        if self.average == "logits":
            return each.mean(dim=0)
        return each.log_softmax(dim=2).logsumexp(dim=0) - math.log(len(each))

    def with_agreement(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits, and a mask (N,) of the images for which all members predict the same class."""
        each = _each(self.members, images)
        classes = each.argmax(dim=2)
        return self.averaged(each), (classes == classes[0]).all(dim=0)

    @property
    def attacked_as(self) -> nn.Module:
        """The classifier that attacks on this ensemble target."""
        if self.attack == WHITE_BOX:
            return self
        if self.attack == MEAN_GRADIENT:
            return MeanLoss(self.members, self.name)
        return self.members[_member(self.attack)]


class MeanLoss(nn.Module):
    """A classifier whose cross-entropy is the mean of its members' cross-entropies, gradient included.

    It returns log-probabilities (N, classes + 1): the geometric means of the members' probabilities. If the
    members differ, these sum to less than 1. The last class takes the rest; without it, the softmax in the
    cross-entropy would normalise them.
    """

    def __init__(self, members: nn.ModuleList, name: str) -> None:
        super().__init__()
        self.members = members
        self.name = name

    def forward(self, images: Tensor) -> Tensor:
        known = _each(self.members, images).log_softmax(dim=2).mean(dim=0)
        # If the members agree, the rest is 0; its logarithm must stay finite.
        total = known.logsumexp(dim=1, keepdim=True).clamp(max=-torch.finfo(known.dtype).eps)
        return torch.cat([known, torch.log(-torch.expm1(total))], dim=1)


def _modules(members: object) -> list[nn.Module]:
    """Return the modules of a list or ModuleList.

    Raises:
        UserError: if `members` is anything else, such as a single module or a list with other objects.
    """
    is_list = isinstance(members, Iterable) and not isinstance(members, str)
    if isinstance(members, nn.Module) and not isinstance(members, nn.ModuleList):
        is_list = False
    found = list(members) if is_list and isinstance(members, Iterable) else [members]
    modules = [member for member in found if isinstance(member, nn.Module)]
    if not is_list or len(modules) < len(found):
        kinds = ", ".join(dict.fromkeys(type(member).__name__ for member in found))
        raise UserError(f"an ensemble takes a list of torch modules, not {kinds}")
    return modules


def check_ensemble(members: int, average: str, attack: str, name: str) -> None:
    """Check the arguments of an `Ensemble` before its members are loaded.

    Args:
        members: Number of members.
        average: See `Ensemble`.
        attack: See `Ensemble`.
        name: Name of the ensemble in messages.

    Raises:
        UserError: if there is no member, or `average` or `attack` is not valid.
    """
    if not members:
        raise UserError("an ensemble needs at least one member")
    if average not in AVERAGES:
        raise UserError(f"an ensemble can average {' or '.join(AVERAGES)}, not {average!r}")
    if attack in (WHITE_BOX, MEAN_GRADIENT):
        return
    if _member(attack) >= members:
        raise UserError(f"{name} has members 0 to {members - 1}: {attack} does not exist")


def _member(attack: str) -> int:
    """Return K of ``member:K``.

    Raises:
        UserError: if `attack` does not have this form.
    """
    match = re.fullmatch(r"member:([0-9]{1,9})", str(attack))
    if match is None:
        known = f"{WHITE_BOX}, {MEAN_GRADIENT} or member:0, member:1, ..."
        raise UserError(f"ensemble_attack must be {known}, not {attack!r}")
    return int(match[1])


def _each(members: nn.ModuleList, images: Tensor) -> Tensor:
    """Return the members' logits for the images, (members, N, classes)."""
    again = len(members) - GRAPHS_KEPT
    return torch.stack(
        [
            checkpoint(_on_a_copy, member, images, use_reentrant=False)
            if at < again
            else _on_a_copy(member, images)
            for at, member in enumerate(members)
        ]
    )


def _on_a_copy(member: nn.Module, images: Tensor) -> Tensor:
    logits = member(images.clone())  # a member may change its input in place
    return logits.float() if logits.dtype == torch.bfloat16 else logits  # in an attack under autocast
