"""An attack set up for one classifier, with checks of its results.

torchattacks computes the attack. This module checks every result: it must be inside [0, 1], within the radius
and finite. It also reports the images without a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from robust_interp.attacks import adapters, precision
from robust_interp.attacks.expectation import EOTClassifier
from robust_interp.attacks.probe import GradientProbe
from robust_interp.attacks.random_draws import (
    KeyedDraws,
    PartOfABatch,
    plugin_draws,
    seed_generators,
)
from robust_interp.attacks.table import ATTACKS, type_of
from robust_interp.core.errors import UserError
from robust_interp.core.memory import is_out_of_memory
from robust_interp.core.model_errors import reported_for
from robust_interp.core.precision import preserved_settings
from robust_interp.core.random_state import generator_states, preserved_rng_state
from robust_interp.core.texts import first_line_of
from robust_interp.store.cells import Perturbation

BALL_TOLERANCE = 1e-6  # float32 rounding: |(x + d) - x| may exceed |d| by about 2e-9 in one pixel
RELATIVE_TOLERANCE = 1e-5  # share of the radius, added for norms that sum over many pixels


def slack(eps: float, norm: str) -> float:
    """Return by how much rounding may make a change exceed `eps`, both in [0, 1] pixels; 0 if eps is 0."""
    return (eps and BALL_TOLERANCE) + (0 if norm == "Linf" else RELATIVE_TOLERANCE * eps)


# Attacked images (N, C, H, W); zero gradients, (N,) bool; values that are not finite, (N,) bool
Found = tuple[Tensor, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class AttackResult:
    """The result of an attack on a batch.

    Attributes:
        images: Attacked images, (N, C, H, W) in [0, 1]. An image is clean if its result was not finite, or
            if a search for the smallest change found none within eps.
        zero_gradient: Whether every gradient of the image was exactly zero, (N,) bool. Always False at
            eps=0 and for attacks with `AttackType.gradient` False.
        not_finite: Whether a gradient or the attacked image was not finite, (N,) bool. Always False at eps=0.
        deltas: Size of each image's change in the attack's norm, (N,) float32; for Linf, the largest absolute
            change of a pixel. For a search for the smallest change, the size of that change even if it
            exceeds eps.
    """

    images: Tensor
    zero_gradient: np.ndarray
    not_finite: np.ndarray
    deltas: np.ndarray


class AttackRunner:
    """An attack set up for one classifier. Calling it attacks a batch and checks the result.

    Args:
        perturbation: The attack with all its parameters.
        classifier: Maps images (N, C, H, W) in [0, 1] to logits; in eval mode with frozen parameters. An
            `EOTClassifier` is attacked on one image at a time.
        on_pass: Called at each pass with its cost, in forward passes of one image.
        judge: The measured classifier, which says which images are broken; None if it is `classifier`.
    """

    def __init__(
        self,
        perturbation: Perturbation,
        classifier: torch.nn.Module,
        on_pass: Callable[[int], None] = lambda passes: None,
        judge: torch.nn.Module | None = None,
    ) -> None:
        self.perturbation = perturbation
        self._kind = type_of(perturbation.name)
        self._of_plugin = callable(self._kind.torchattacks_class)
        self._one_by_one = False  # whether a plug-in was found to draw for a part of its batch
        self._probe = GradientProbe(classifier, self._kind.gradient, on_pass, perturbation.precision, judge)
        self._rounds: tuple[torch.device, list[adapters.Round]] | None = None

    def __call__(
        self, images: Tensor, labels: Tensor, ids: Sequence[int] | np.ndarray, max_batch: int | None = None
    ) -> AttackResult:
        """Attack a batch of images.

        The later rounds of an attack, such as its restarts, run only on the images that are still classified
        correctly. These are regrouped into full batches.

        Args:
            images: Clean images, (N, C, H, W) in [0, 1].
            labels: Labels, (N,).
            ids: Image ids, (N,); they key the random numbers.
            max_batch: Largest number of images that go through the model together; None for all.

        Raises:
            RuntimeError: if a built-in attack returns images outside [0, 1] or outside the radius.
            UserError: if a plug-in, or a torchattacks class given by its class name, does so, fails, or
                returns no batch of images; or if the attack needs a gradient and the classifier has none.
        """
        keys, adversarial = np.asarray(ids), images.clone()
        zero, not_finite = np.zeros(len(images), bool), np.zeros(len(images), bool)
        max_batch = max_batch or max(1, len(images))
        with preserved_rng_state():
            rounds = self._set_up(images)
            rows = (
                self._right(images, labels, keys, max_batch)
                if self._kind.skips_misclassified
                else torch.arange(len(images), device="cpu")
            )
            for number, one in enumerate(rounds):
                if not len(rows):
                    break
                at = rows.numpy()
                found, blind, unfit = self._run(one, number, images[rows], labels[rows], keys[at], max_batch)
                zero[at] = blind if number == 0 else zero[at] & blind
                not_finite[at] |= unfit
                unbroken = torch.ones(len(rows), dtype=torch.bool, device="cpu")
                if len(rounds) > 1:
                    unbroken[:] = False
                    unbroken[self._right(found, labels[rows], keys[at], max_batch)] = True
                    changed = ~unbroken if number else torch.ones_like(unbroken)
                    adversarial[rows[changed]] = found[changed]
                else:
                    adversarial[rows] = found
                rows = rows[unbroken]
        if self.perturbation.number("eps") == 0:  # a control: it needs no gradient
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
    def _right(self, images: Tensor, labels: Tensor, ids: np.ndarray, max_batch: int) -> Tensor:
        """Return the indices of the images that the measured classifier has right."""
        classifier = self._probe.classifier if self._probe.judge is None else self._probe.judge
        with reported_for(classifier):
            if isinstance(classifier, EOTClassifier):
                found = [classifier.votes(images, ids).argmax(1)]
            else:
                found = [classifier(part.clone()).argmax(1) for part in images.split(max_batch)]
        return (torch.cat(found) == labels).nonzero().flatten().cpu()

    def _run(
        self,
        one: adapters.Round,
        number: int,
        images: Tensor,
        labels: Tensor,
        ids: np.ndarray,
        max_batch: int,
    ) -> Found:
        """Run one round on some images, in batches of at most `max_batch`."""
        if one.refills or len(ids) <= max_batch:
            self._probe.max_batch = max_batch
            return self._run_batch(one, number, images, labels, ids)
        starts = range(0, len(ids), max_batch)
        parts = zip(
            images.split(max_batch),
            labels.split(max_batch),
            [ids[at : at + max_batch] for at in starts],
            strict=True,
        )
        return _joined([self._run_batch(one, number, *part) for part in parts])

    def _run_batch(
        self, one: adapters.Round, number: int, images: Tensor, labels: Tensor, ids: np.ndarray
    ) -> Found:
        alone = one.alone or isinstance(self._probe.classifier, EOTClassifier)
        run = self._run_together if self._of_plugin and not alone else self._run_alone
        if not alone and not self._one_by_one:
            try:
                return self._run_together(one, number, images, labels, ids)
            except PartOfABatch:
                self._one_by_one = self._of_plugin  # the same for its next batches
        return _joined([run(one, number, images[[at]], labels[[at]], ids[[at]]) for at in range(len(ids))])

    def _run_together(
        self, one: adapters.Round, number: int, images: Tensor, labels: Tensor, ids: np.ndarray
    ) -> Found:
        drawn: AbstractContextManager = nullcontext()
        if self.perturbation.seed is not None:
            drawn = (plugin_draws if self._of_plugin else KeyedDraws)(self.perturbation, ids, number)
        self._probe.start(len(images))
        with drawn:
            return self._found(one, images, labels)

    def _run_alone(
        self, one: adapters.Round, number: int, image: Tensor, label: Tensor, ids: np.ndarray
    ) -> Found:
        sample = ids[0]
        seed_generators(self.perturbation.seed, sample, number)
        self._probe.start(1)
        model = self._probe.classifier
        try:
            with model.attack_round(sample, number) if isinstance(model, EOTClassifier) else nullcontext():
                return self._found(one, image, label)
        except UserError:
            raise
        except Exception as error:
            if self.perturbation.name in ATTACKS or is_out_of_memory(error):
                raise
            reason = first_line_of(error)
            raise UserError(
                f"torchattacks' {self.perturbation.name} fails on image {sample}: {reason}"
            ) from error

    def _found(self, one: adapters.Round, images: Tensor, labels: Tensor) -> Found:
        is_random = self.perturbation.seed is not None or isinstance(self._probe.classifier, EOTClassifier)
        draws_nothing = self._of_plugin and not is_random
        before = generator_states() if draws_nothing else ()
        with precision.arithmetic(self.perturbation.precision), preserved_settings():
            found = one.run(images, labels)
        if draws_nothing and generator_states() != before:
            raise self._error("draws random numbers: declare it with random=True")
        if not isinstance(found, Tensor):
            raise self._error(f"returns a {type(found).__name__}, not a tensor of images")
        if found.shape != images.shape:
            raise self._error(f"returns shape {tuple(found.shape)} for {tuple(images.shape)}")
        if found.device != images.device:
            raise self._error(f"returns images on {found.device} for images on {images.device}")
        if not found.is_floating_point():  # rounding to whole numbers is not what the attack meant
            raise self._error(f"returns images of {found.dtype}, not of floating point")
        found = found.detach().to(images.dtype)
        finite = torch.isfinite(found).flatten(1).all(1)
        found = torch.where(finite.view(-1, 1, 1, 1), found, images)
        blind, unfit = self._probe.findings()
        return found, blind, unfit | ~finite.cpu().numpy()

    def _checked(
        self, images: Tensor, adversarial: Tensor, zero: np.ndarray, not_finite: np.ndarray
    ) -> AttackResult:
        norm, eps = self.perturbation.norm, self.perturbation.number("eps")
        distances = adapters.distance(adversarial - images, norm)
        if adversarial.min() < 0 or adversarial.max() > 1:
            raise self._error("returns values outside [0, 1]")
        if self._kind.minimal and eps is not None:
            adversarial = torch.where((distances > eps).view(-1, 1, 1, 1), images, adversarial)
        elif eps is not None and (largest := distances.max().item()) > eps + slack(eps, norm):
            what = "it changes a pixel by" if norm == "Linf" else f"the {norm} size of a change is"
            raise self._error(f"exceeds its radius: {what} {largest}")
        return AttackResult(adversarial, zero, not_finite, distances.float().cpu().numpy())

    def _error(self, what: str) -> Exception:
        """Return a RuntimeError for a built-in attack, else a UserError: its code is not ours."""
        ours = self.perturbation.name in ATTACKS and isinstance(self._kind.torchattacks_class, str)
        return (RuntimeError if ours else UserError)(f"{self.perturbation.column} {what}")


def _joined(parts: Sequence[Found]) -> Found:
    found, blind, unfit = zip(*parts, strict=True)
    return torch.cat(found), np.concatenate(blind), np.concatenate(unfit)
