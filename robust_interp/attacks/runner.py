"""An attack set up for one classifier, with checks of its results.

torchattacks computes the attack. Every result is checked here: it must be inside [0, 1], within the radius
and finite, and samples without a gradient are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from robust_interp.attacks import adapters, precision
from robust_interp.attacks.expectation import Randomised
from robust_interp.attacks.random_draws import (
    KeyedDraws,
    PartOfABatch,
    seed_generators,
)
from robust_interp.attacks.table import ATTACKS, type_of
from robust_interp.core.errors import UserError
from robust_interp.core.memory import is_out_of_memory
from robust_interp.core.random_state import undisturbed_generators
from robust_interp.core.texts import first_line_of
from robust_interp.store.cells import FLOAT32, Perturbation

BALL_TOLERANCE = 1e-6  # float32 rounding: |(x + d) - x| may exceed |d| by about 2e-9 in one pixel
RELATIVE_TOLERANCE = 1e-5  # and where many pixels are summed


def slack(eps: float, norm: str) -> float:
    """How far rounding may carry a change beyond a radius, both in [0, 1] pixels; nothing where that is 0."""
    return (eps and BALL_TOLERANCE) + (0 if norm == "Linf" else RELATIVE_TOLERANCE * eps)


MASKED_BELOW = 1e4  # how far; a probability is 0 from 104 on in float32

# Of some samples: what was found, whose gradient was zero, whose values were not finite, (N,) bool each
Found = tuple[Tensor, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Attacked:
    """The result of an attack on a batch.

    Attributes:
        images: (N, C, H, W) in [0, 1]; a sample has its clean image if its result was not finite, or if a
            search for the smallest change found none within eps.
        zero_gradient: (N,) bool, whether every gradient was exactly zero.
        not_finite: (N,) bool, whether a gradient or the attacked image was not finite.
        deltas: (N,) float32, the size of each sample's change in the attack's norm: for Linf its largest
            |change of a pixel|. For a search for the smallest change, it is the change found, for any eps.
    """

    images: Tensor
    zero_gradient: np.ndarray
    not_finite: np.ndarray
    deltas: np.ndarray


class AttackRunner:
    """An attack set up for one classifier. Calling it attacks a batch and checks the result.

    Args:
        classifier: Maps (N, C, H, W) pixels in [0, 1] to logits; in eval mode with frozen parameters. One
            that is randomised is attacked on one sample at a time.
        on_pass: Called at each pass with what it costs, in forward passes of one sample.
    """

    def __init__(
        self,
        perturbation: Perturbation,
        classifier: torch.nn.Module,
        on_pass: Callable[[int], None] = lambda passes: None,
    ) -> None:
        self.perturbation = perturbation
        self._kind = type_of(perturbation.name)
        self._probe = GradientProbe(classifier, self._kind.gradient, on_pass, perturbation.precision)
        self._rounds: tuple[torch.device, list[adapters.Round]] | None = None

    def __call__(
        self, images: Tensor, labels: Tensor, ids: Sequence[int] | np.ndarray, at_once: int | None = None
    ) -> Attacked:
        """Attack images (N, C, H, W) in [0, 1] with labels (N,); `ids` key everything that is drawn.

        Between the rounds of an attack, such as its restarts, a sample that was broken is kept as it is, and
        those that still stand are put together to full batches.

        Args:
            at_once: How many of them go through the model together, at most; None for all.

        Raises:
            RuntimeError: if the result is outside [0, 1] or the radius.
            UserError: if that of a plug-in, or of a torchattacks class without a name of its own here, is so,
                or is no batch of images.
        """
        keys, adversarial = np.asarray(ids), images.clone()
        zero, not_finite = np.zeros(len(images), bool), np.zeros(len(images), bool)
        at_once = at_once or max(1, len(images))
        with undisturbed_generators():
            rounds = self._set_up(images)
            rows = (
                self._right(images, labels, keys, at_once)
                if self._kind.only_right
                else torch.arange(len(images), device="cpu")
            )
            for number, one in enumerate(rounds):
                if not len(rows):
                    break
                at = rows.numpy()
                found, blind, unfit = self._run(one, number, images[rows], labels[rows], keys[at], at_once)
                zero[at] = blind if number == 0 else zero[at] & blind
                not_finite[at] |= unfit
                standing = torch.ones(len(rows), dtype=torch.bool, device="cpu")
                if len(rounds) > 1:
                    standing[:] = False
                    standing[self._right(found, labels[rows], keys[at], at_once)] = True
                    changed = ~standing if number else torch.ones_like(standing)
                    adversarial[rows[changed]] = found[changed]
                else:
                    adversarial[rows] = found
                rows = rows[standing]
        if self.perturbation.number("eps") == 0:  # a control: no gradient is needed to stay where one is
            zero[:], not_finite[:] = False, False
        return self._checked(images, adversarial, zero, not_finite)

    def _set_up(self, images: Tensor) -> list[adapters.Round]:
        if self._rounds is None or self._rounds[0] != images.device:
            self._rounds = (
                images.device,
                adapters.rounds(self.perturbation, self._kind, self._probe, images),
            )
        return self._rounds[1]

    @torch.no_grad()
    def _right(self, images: Tensor, labels: Tensor, ids: np.ndarray, at_once: int) -> Tensor:
        """The places of the samples that are classified as they should be."""
        classifier = self._probe.classifier
        if isinstance(classifier, Randomised):
            found = [classifier.votes(images, ids).argmax(1)]
        else:
            found = [classifier(part.clone()).argmax(1) for part in images.split(at_once)]
        return (torch.cat(found) == labels).nonzero().flatten().cpu()

    def _run(
        self,
        one: adapters.Round,
        number: int,
        images: Tensor,
        labels: Tensor,
        ids: np.ndarray,
        at_once: int,
    ) -> Found:
        """One round on some samples: what it found, who had no gradient, whose values are not finite."""
        if one.refills or len(ids) <= at_once:
            self._probe.at_once = at_once
            return self._run_batch(one, number, images, labels, ids)
        starts = range(0, len(ids), at_once)
        parts = zip(
            images.split(at_once),
            labels.split(at_once),
            [ids[at : at + at_once] for at in starts],
            strict=True,
        )
        return _joined([self._run_batch(one, number, *part) for part in parts])

    def _run_batch(
        self, one: adapters.Round, number: int, images: Tensor, labels: Tensor, ids: np.ndarray
    ) -> Found:
        try:
            if not one.alone and not isinstance(self._probe.classifier, Randomised):
                return self._run_together(one, number, images, labels, ids)
        except PartOfABatch:
            pass
        return _joined(
            [self._run_alone(one, number, images[[at]], labels[[at]], ids[at]) for at in range(len(ids))]
        )

    def _run_together(
        self, one: adapters.Round, number: int, images: Tensor, labels: Tensor, ids: np.ndarray
    ) -> Found:
        drawn = self.perturbation.seed is not None
        self._probe.start(len(images))
        with KeyedDraws(self.perturbation, ids, number) if drawn else nullcontext():
            return self._found(one, images, labels)

    def _run_alone(
        self, one: adapters.Round, number: int, image: Tensor, label: Tensor, sample: int
    ) -> Found:
        seed_generators(self.perturbation.seed, sample, number)
        self._probe.start(1)
        model = self._probe.classifier
        try:
            with model.attacked(sample, number) if isinstance(model, Randomised) else nullcontext():
                return self._found(one, image, label)
        except UserError:
            raise
        except Exception as error:
            if self.perturbation.name in ATTACKS or is_out_of_memory(error):
                raise
            reason = first_line_of(error)
            raise UserError(
                f"torchattacks' {self.perturbation.name} fails on sample {sample}: {reason}"
            ) from error

    def _found(self, one: adapters.Round, images: Tensor, labels: Tensor) -> Found:
        with precision.arithmetic(self.perturbation.precision):
            found = one.run(images, labels)
        if not isinstance(found, Tensor):
            raise self._error(f"returns a {type(found).__name__}, not a tensor of images")
        if found.shape != images.shape:
            raise self._error(f"returns shape {tuple(found.shape)} for {tuple(images.shape)}")
        found = found.detach()
        finite = torch.isfinite(found).flatten(1).all(1)
        found = torch.where(finite.view(-1, 1, 1, 1), found, images)
        blind, unfit = self._probe.findings()
        return found, blind, unfit | ~finite.cpu().numpy()

    def _checked(
        self, images: Tensor, adversarial: Tensor, zero: np.ndarray, not_finite: np.ndarray
    ) -> Attacked:
        norm, eps = self.perturbation.norm, self.perturbation.number("eps")
        distances = adapters.distance(adversarial - images, norm)
        if adversarial.min() < 0 or adversarial.max() > 1:
            raise self._error("returns values outside [0, 1]")
        if self._kind.minimal and eps is not None:
            adversarial = torch.where((distances > eps).view(-1, 1, 1, 1), images, adversarial)
        elif eps is not None and (largest := distances.max().item()) > eps + slack(eps, norm):
            what = "it changes a pixel by" if norm == "Linf" else f"the {norm} size of a change is"
            raise self._error(f"exceeds its radius: {what} {largest}")
        return Attacked(adversarial, zero, not_finite, distances.float().cpu().numpy())

    def _error(self, what: str) -> Exception:
        """A user's mistake where the code of the attack is not ours to answer for."""
        ours = self.perturbation.name in ATTACKS and isinstance(self._kind.torchattacks_class, str)
        return (RuntimeError if ours else UserError)(f"{self.perturbation.column} {what}")


def _joined(parts: Sequence[Found]) -> Found:
    found, blind, unfit = zip(*parts, strict=True)
    return torch.cat(found), np.concatenate(blind), np.concatenate(unfit)


class GradientProbe(torch.nn.Module):
    """Passes its input on to the classifier and looks at the gradients that come back.

    Those that an attack gets are laid out as its images, which attacks take for granted; a model in channels
    last would give them its layout. A pass does nothing that waits for the device.

    Attributes:
        at_once: How many samples are to go through the model together, for rounds that `refills`.

    Args:
        looks: Whether the attack follows gradients at all.
        on_pass: As of `AttackRunner`.
        precision: That the gradients are computed in: ``float32``, ``tf32`` or ``bf16``.
    """

    def __init__(
        self,
        classifier: torch.nn.Module,
        looks: bool,
        on_pass: Callable[[int], None],
        precision: str = FLOAT32,
    ) -> None:
        super().__init__()
        self.classifier = classifier
        self.training = False  # torchattacks puts the mode found here back, on everything below
        self._looks, self._on_pass, self._precision = looks, on_pass, precision
        self.at_once = 0
        self.start(0)

    def train(self, mode: bool = True) -> GradientProbe:
        """Nothing: a measurement keeps everything in eval mode, and torch.export's programs have no modes."""
        return self

    def start(self, count: int) -> None:
        """Forget what was seen: a run over `count` samples begins."""
        self._count = count
        self._seen: tuple[Tensor, Tensor] | None = None  # zero and not finite, (N,) bool each
        self._rows: Tensor | None = None

    def attend(self, rows: Tensor) -> None:
        """The next pass is of these samples alone, (n,) places among those of the run, each once."""
        self._rows = rows

    def findings(self) -> tuple[np.ndarray, np.ndarray]:
        """Which samples had only zero gradients, and which had one that is not finite: (N,) bool each."""
        if self._seen is None:
            return np.zeros(self._count, bool), np.zeros(self._count, bool)
        zero, not_finite = self._seen
        return zero.cpu().numpy(), not_finite.cpu().numpy()

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, C, H, W) in [0, 1] -> logits (N, classes).

        Raises:
            UserError: where a gradient is asked for and the classifier lets none through.
        """
        follows = images.requires_grad and torch.is_grad_enabled()
        self._on_pass(len(images) * (3 if follows else 1))  # a gradient counts as two more
        # Not the attack's own: a model may work in place on what it is given.
        spares = getattr(self.classifier, "spares_its_images", False)
        images = images.view_as(images) if spares else images.clone()
        if not follows:
            return _finite(self.classifier(images))
        images.register_hook(_as_images_are)
        if self._looks:
            images.register_hook(self._look)
        logits = precision.logits_of(self.classifier, images, self._precision)
        if not logits.requires_grad:
            raise self._impenetrable()
        return _finite(logits)

    def _impenetrable(self) -> UserError:
        name = getattr(self.classifier, "name", "the model")
        return UserError(
            f"{name} lets no gradient through to its input, so it cannot be attacked by gradients: use square"
        )

    def _look(self, gradient: Tensor | None) -> None:
        if gradient is None:  # the logits have one, but it ends before the images
            raise self._impenetrable()
        if self._rows is not None:
            self._look_at(self._rows, _largest(gradient.detach(), len(self._rows)))
            return
        largest = _largest(gradient.detach(), self._count)
        zero, not_finite = largest == 0, ~torch.isfinite(largest)
        if self._seen is not None:
            zero, not_finite = self._seen[0] & zero, self._seen[1] | not_finite
        self._seen = zero, not_finite

    def _look_at(self, rows: Tensor, largest: Tensor) -> None:
        if self._seen is None:
            nobody = torch.zeros(self._count, dtype=torch.bool, device=largest.device)
            self._seen = ~nobody, nobody
        zero, not_finite = self._seen
        zero[rows] &= largest == 0
        not_finite[rows] |= ~torch.isfinite(largest)


def _as_images_are(gradient: Tensor | None) -> Tensor | None:
    """A gradient laid out as images are; None where it ends before them."""
    return None if gradient is None else gradient.contiguous()


def _finite(logits: Tensor) -> Tensor:
    """Logits with classes at -inf, which a model leaves out, far below the others: losses subtract them."""
    masked = logits == -torch.inf
    floor = torch.where(masked, torch.inf, logits.detach()).amin(1, keepdim=True) - MASKED_BELOW
    return torch.where(masked, floor, logits)


def _largest(gradient: Tensor, count: int) -> Tensor:
    """Each sample's largest |value|, (count,), NaN and infinity included; a sample may have several rows."""
    if len(gradient) == count:
        return torch.linalg.vector_norm(gradient, torch.inf, dim=tuple(range(1, gradient.ndim)))
    return torch.linalg.vector_norm(gradient.reshape(count, -1), torch.inf, dim=1)
