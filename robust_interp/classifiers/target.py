"""What is measured: a target is a card, which says what it is without loading it, and a way to load it.

Every name, file and object comes to one of these, and each is checked here, once on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from robust_interp import data
from robust_interp.attacks.expectation import Randomised
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.fingerprint import behaviour, identity, rewritten
from robust_interp.classifiers.isolation import undisturbed
from robust_interp.classifiers.layout import use_channels_last
from robust_interp.classifiers.validation import (
    CHECKED_ON,
    REPEATED_ON,
    OneAtATime,
    check_classifier,
    measurable,
    one_output_notes,
    output_notes,
    plain_logits,
    refuse_batch_statistics,
    stale_batch_norm,
)
from robust_interp.core.errors import RandomModelError, UserError
from robust_interp.core.memory import with_fewer
from robust_interp.store.cells import ModelCard, digest

Load = Callable[[torch.device | str], nn.Module]

Tried = Mapping[str, Load | UserError]  # by a target's key: how it loads, or why it could not be measured


@dataclass(frozen=True, eq=False)
class Target:
    """Something to measure.

    Attributes:
        card: What it is.
        load: Gives it as a classifier of pixels on a device. The first time on a device it is checked there,
            which raises a UserError where it cannot be measured.
        notes: What a reader of its numbers must be told.
        dataset: The images as it takes them; None for those of the run.
    """

    card: ModelCard
    load: Load
    notes: tuple[str, ...] = ()
    dataset: data.Dataset | None = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """Its notes, and what was noticed when it was loaded."""
        noticed = self.load.notes if isinstance(self.load, Loader) else ()
        return tuple(dict.fromkeys((*self.notes, *noticed)))

    @property
    def key(self) -> str:
        """The same for two targets that are one model under one name."""
        return digest([self.card.label, self.card.identity, self.card.attacked_as])


@dataclass(frozen=True)
class Context:
    """What a model is loaded for, and what was said of it besides its name.

    Attributes:
        checkpoint: A weights file.
        weights_key: Which of several state dicts in a weights file is meant.
        mean: What its images are normalised with, in [0, 1] pixels; None is what comes with the model, such
            as a timm model's ``pretrained_cfg``, and nothing for any other model.
        std: Likewise.
        is_fitted: Whether the dataset's images are as the model takes them.
        eot: Over how many draws a random model is attacked and judged; 0 refuses it.
        seed: Of these draws.
    """

    dataset: data.Dataset
    checkpoint: Path | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    weights_key: str | None = None
    is_fitted: bool = False
    eot: int = 0
    seed: int = 0

    @property
    def channels(self) -> int:
        return self.dataset.channels

    def fitted(self, cfg: Mapping[str, Any]) -> Context:
        """With the images as a model takes them that has this ``pretrained_cfg``; the first one counts."""
        if self.is_fitted or not cfg:
            return self
        return replace(self, dataset=self.dataset.fitted(cfg), is_fitted=True)


class Loader:
    """How a target loads: built once, and checked once on each device but those where it was already.

    Args:
        build: Makes the classifier of pixels, on any device.
        dataset: What it is checked on.
        checked_on: The devices, as texts, where it was checked.
        alike_passed_on: Those where one has passed that differs from it in its weights alone, which is then
            checked by one forward pass. Shared by all that are alike, and added to.

    Attributes:
        notes: What looked wrong with its outputs when it was checked here.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        dataset: data.Dataset,
        checked_on: Iterable[str] = (),
        alike_passed_on: set[str] | None = None,
    ) -> None:
        self._build, self._dataset, self._checked = cache(build), dataset, set(checked_on)
        self._alike_passed = set[str]() if alike_passed_on is None else alike_passed_on
        self.notes: tuple[str, ...] = ()

    def __call__(self, device: torch.device | str) -> nn.Module:
        classifier = self._build().to(device)
        place = _place(classifier, device)
        if place not in self._checked:
            with undisturbed(classifier):
                images = _pixels(self._dataset, _spread(self._dataset), place)
                self.notes = with_fewer(lambda count: self._check(classifier, images[:count]), len(images))
            self._checked.add(place)
            self._alike_passed.add(place)
        return classifier

    def _check(self, classifier: nn.Module, images: torch.Tensor) -> tuple[str, ...]:
        logits, classes = None, self._dataset.classes
        if _place(classifier, images.device) in self._alike_passed:
            logits = plain_logits(classifier, images, classes)
        if logits is None:
            check_classifier(classifier, images, classes)
        return output_notes(classifier, images, logits)


def from_module(
    name: str, model: nn.Module, context: Context, sha256: str | None = None, notes: tuple[str, ...] = ()
) -> Target:
    """A model that is an object, checked and told from others where it is.

    Args:
        name: What it is called.
        model: Maps images (N, C, H, W) to logits (N, classes): normalised ones, if there is a normalisation.
        context: The dataset, and the normalisation that was given.
        sha256: Hash of the weights file it was made from; None is a hash of its state.
        notes: What a reader of its numbers must be told already.

    Raises:
        UserError: if it cannot be measured on this dataset.
    """
    model, changed = measurable(model, name)
    notes += changed
    context = context.fitted(timm_cfg(model))
    mean, std = context.mean, context.std
    if mean is None and std is None:
        mean, std = _own_normalisation(model, context.dataset)
        if mean is None and (inner := _normalised_inside(model)):
            notes += (
                f"{name} holds a timm model trained with mean {inner[0]} and std {inner[1]}; they are not "
                "applied: pass mean and std, unless the model normalises its input itself",
            )
        elif mean is None and hasattr(getattr(model, "config", None), "model_type"):
            notes += (
                f"{name} looks like a Hugging Face model; no normalisation is applied: pass mean and std, as "
                "its processor has them, unless the model normalises its input itself",
            )
    classifier = Classifier(model, mean, std, name, binary=context.dataset.classes == 2)
    place = _place(classifier, "cpu")
    classifier.to(place)  # buffers may have been elsewhere
    measured: nn.Module = classifier
    try:
        try:
            known, found = _known(classifier, context.dataset, place)
        except RandomModelError as error:
            if not context.eot:
                raise RandomModelError(f"{error}; bench --eot 10 measures random models") from error
            measured = Randomised(classifier, context.eot, context.seed)
            known, found = _known_randomised(classifier, measured, context.dataset, place)
    except UserError as error:
        raise type(error)("; ".join([str(error), *changed])) from error
    notes += found
    params_m = sum(p.numel() for p in classifier.parameters()) / 1e6
    eot = known.get("eot", 0)
    weights = sha256 or known["state_sha256"]
    card = ModelCard(name, known, params_m=params_m, weights_sha256=weights, eot=eot)
    return Target(card, Loader(lambda: measured, context.dataset, [place]), notes, context.dataset)


def fast(model: nn.Module) -> nn.Module:
    """Channels last: a sixth less time under attack on a CPU, and every timm model allows it."""
    return model.to(memory_format=torch.channels_last)


def check_fits(what: str, classes: int, channels: int, context: Context, hint: str = "") -> None:
    """Refuse a model that was made for other classes or channels than the dataset's.

    Args:
        what: What the message calls the model.
        classes: How many it tells apart.
        channels: Of the images that it takes.
        context: What it is to be measured on.
        hint: What could be done instead, for the message.

    Raises:
        UserError: if either differs.
    """
    needed, name = (context.dataset.classes, context.channels), context.dataset.name
    if (classes, channels) != needed:
        raise UserError(
            f"{what} has {classes} classes and takes {channels} channels; {name} has {needed[0]} and "
            f"{needed[1]}" + (f": {hint}" if hint else "")
        )


def size_note(name: str, size: Sequence[int], context: Context) -> tuple[str, ...]:
    """A note if the images are of another size (C, H, W) than those that a model was made for."""
    shape = context.dataset.shape
    if tuple(size[1:]) == shape[1:]:
        return ()
    made, given = ("x".join(map(str, pair)) for pair in (size[1:], shape[1:]))
    return (f"{name} is made for {made} images, according to its configuration; it is measured on {given}",)


def replaced_note(name: str, model: nn.Module, context: Context) -> tuple[str, ...]:
    """A note if the mean and std that were given stand in for others that the model came with."""
    cfg, mean, std = timm_cfg(model), context.mean, context.std
    if not cfg or mean is None or std is None:
        return ()
    if (tuple(cfg["mean"]), tuple(cfg["std"])) == (tuple(mean), tuple(std)):
        return ()
    return (
        f"{name} came with mean {cfg['mean']} and std {cfg['std']}; the given mean and std are applied "
        "instead",
    )


def timm_cfg(model: nn.Module) -> Mapping[str, Any]:
    """What timm says of a model that it made, its ``pretrained_cfg``; empty for any other model."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel | OneAtATime):
        model = model.module
    return getattr(model, "pretrained_cfg", None) or {}


def _place(classifier: nn.Module, otherwise: torch.device | str) -> str:
    """The device that a classifier is on, as the text of it; `otherwise` if it has no parameters."""
    return str(next((parameter.device for parameter in classifier.parameters()), otherwise))


def _spread(dataset: data.Dataset) -> np.ndarray:
    """The ids of a few images, spread over the set, which may be sorted by class."""
    return np.unique(np.linspace(0, len(dataset) - 1, REPEATED_ON).astype(int))


def _pixels(dataset: data.Dataset, ids: np.ndarray, device: str) -> torch.Tensor:
    return torch.from_numpy(data.as_pixels(dataset.at(ids))).to(device)


def _known(classifier: Classifier, dataset: data.Dataset, place: str) -> tuple[dict, tuple[str, ...]]:
    """What it is known by: its code, state, and what it does to a few images. And what looks wrong there."""
    spread = _spread(dataset)
    images = _pixels(dataset, spread, place)
    with undisturbed(classifier):
        return with_fewer(
            lambda count: _checked(classifier, images[:count], dataset, spread[:count]), len(images)
        )


def _checked(
    classifier: Classifier, images: torch.Tensor, dataset: data.Dataset, ids: np.ndarray
) -> tuple[dict, tuple[str, ...]]:
    """As `_known`, by these images (N, C, H, W) of the dataset; from then on in the layout that suits it."""
    labels = torch.from_numpy(dataset.labels[ids]).to(images.device)
    check_classifier(classifier, images, dataset.classes)
    passing = rewritten(classifier, images)
    known = identity(classifier.model, passing) | {"behaviour": behaviour(classifier, images)}
    notes = one_output_notes(classifier, images) + output_notes(classifier, images)
    if stale_batch_norm(classifier, images, labels, dataset.classes):
        notes += (
            f"{classifier.name}: BatchNorm statistics look unset: with them the clean accuracy is "
            "at chance level, with batch statistics it is well above",
        )
    use_channels_last(classifier, images[:CHECKED_ON])  # what it is known by was read before
    return known | {"normalisation": classifier.normalisation}, notes


def _known_randomised(
    classifier: Classifier, randomised: Randomised, dataset: data.Dataset, place: str
) -> tuple[dict, tuple[str, ...]]:
    """As `_known`, of a classifier that draws random numbers."""
    images = _pixels(dataset, _spread(dataset), place)
    with undisturbed(randomised):
        refuse_batch_statistics(classifier)
        check_classifier(randomised, images, dataset.classes)
        known = identity(classifier.model) | {
            "behaviour": behaviour(randomised, images),
            "normalisation": classifier.normalisation,
            "eot": randomised.draws,
            "eot_seed": randomised.seed,
        }
        notes = one_output_notes(classifier, images) + output_notes(randomised, images)
    draws = f"{randomised.draws} draw{'s' * (randomised.draws > 1)}"
    note = (
        f"{classifier.name} is random: attacked through the mean logits of {draws}, judged by a majority vote"
    )
    return known, (note, *notes)


def _own_normalisation(
    model: nn.Module, dataset: data.Dataset
) -> tuple[Sequence[float], Sequence[float]] | tuple[None, None]:
    """A timm model's own mean and std, the dataset's if those are for other channels; else none."""
    cfg = timm_cfg(model)
    if not cfg:
        return None, None
    if len(cfg["mean"]) == dataset.channels:
        return cfg["mean"], cfg["std"]
    if dataset.name not in data.DATASETS:
        raise UserError(
            f"{type(model).__name__} is normalised for another number of channels: pass mean and std"
        )
    kind = data.DATASETS[dataset.name]
    return kind.mean, kind.std


def _normalised_inside(model: nn.Module) -> tuple[Sequence[float], Sequence[float]] | None:
    """Mean and std of a timm model below `model` that no Classifier applies; None if there is none."""
    if isinstance(model, Classifier) and model.normalisation:
        return None
    cfg = timm_cfg(model)
    if cfg and any(cfg["mean"]):
        return cfg["mean"], cfg["std"]
    return next(filter(None, map(_normalised_inside, model.children())), None)
