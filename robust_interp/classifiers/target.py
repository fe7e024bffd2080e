"""Targets: models and ensembles to measure. A target has a card that describes it, and a function to load it.

Every name, file and object becomes a target. It is checked here, once per device.
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
from robust_interp.attacks.expectation import EOTClassifier
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.fingerprint import changed_by_forward, identity, output_hash
from robust_interp.classifiers.isolation import measurement_mode
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
from robust_interp.core import devices
from robust_interp.core.errors import RandomModelError, UserError
from robust_interp.core.memory import retry_with_smaller_batch
from robust_interp.core.model_errors import reported_for
from robust_interp.store.cells import ModelCard, digest

Load = Callable[[torch.device | str], nn.Module]

# by a target's key: how it loads, or why it could not be measured
LoadAttempts = Mapping[str, Load | UserError]


@dataclass(frozen=True, eq=False)
class Target:
    """A model or ensemble to measure.

    Attributes:
        card: Description of the model, available without loading it.
        load: Returns the classifier of pixels on a given device. The first call on a device checks it there,
            and raises a UserError if it cannot be measured.
        notes: Notes for a reader of its results.
        dataset: The data set, preprocessed for this model; None uses the data set of the run.
        left_out: Notes on broken models that were left out when this one was selected.
        checkpoint: Full name of its checkpoint in the zoo's format; empty for other models.
    """

    card: ModelCard
    load: Load
    notes: tuple[str, ...] = ()
    dataset: data.Dataset | None = None
    left_out: tuple[str, ...] = ()
    checkpoint: str = ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, those on models left out, and those of the check when it was loaded."""
        noticed = self.load.notes if isinstance(self.load, TargetLoader) else ()
        return tuple(dict.fromkeys((*self.notes, *self.left_out, *noticed)))

    @property
    def key(self) -> str:
        """Hash of name, identity and attacked model: equal for duplicates."""
        return digest([self.card.label, self.card.identity, self.card.attacked_as])


@dataclass(frozen=True)
class Context:
    """The data set that a model is loaded for, and the options of the model.

    Attributes:
        dataset: The data set that the model is measured on.
        checkpoint: A weights file; None for the model's own weights.
        mean: Per-channel mean to normalise the images with, in [0, 1] pixels; None takes the mean and std
            that come with the model, as in timm's ``pretrained_cfg``, or no normalisation.
        std: Per-channel standard deviation, as `mean`.
        weights_key: Key of the state dict in a weights file with several.
        is_preprocessed: Whether the data set is already preprocessed for the model.
        eot: Number of draws over which a random model is attacked and classified; 0 refuses it.
        seed: Seed of these draws.
        takes_pixels: Whether the model is known to normalise its input itself.
    """

    dataset: data.Dataset
    checkpoint: Path | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    weights_key: str | None = None
    is_preprocessed: bool = False
    eot: int = 0
    seed: int = 0
    takes_pixels: bool = False

    @property
    def channels(self) -> int:
        return self.dataset.channels

    def preprocessed_for(self, cfg: Mapping[str, Any]) -> Context:
        """Preprocess the data set as in a ``pretrained_cfg``; later calls change nothing."""
        if self.is_preprocessed or not cfg:
            return self
        return replace(self, dataset=self.dataset.preprocessed_for(cfg), is_preprocessed=True)


class TargetLoader:
    """The `load` of a target: builds the classifier once, and checks it once per device.

    Args:
        build: Returns the classifier of pixels, on any device.
        dataset: The data set whose images are used for the check.
        checked_on: Names of devices on which the classifier was already checked.
        alike_passed_on: Names of devices on which one that differs only in its weights has passed the
            check; there one forward pass is enough. All such classifiers share the set, and add to it.

    Attributes:
        notes: Notes on the outputs from the last check.
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
            with measurement_mode(classifier), reported_for(classifier):
                images = _pixels(self._dataset, _spread(self._dataset), place)
                self.notes = retry_with_smaller_batch(
                    lambda count: self._check(classifier, images[:count]), len(images), place
                )
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
    """Check a torch module on its device, and make a target of it.

    Args:
        name: Name of the model.
        model: Maps images (N, C, H, W) to logits (N, classes). With a normalisation, it gets normalised
            images.
        context: The data set and the other settings of the model.
        sha256: Hash of the weights file that the model was loaded from; None takes a hash of code and state.
        notes: Notes to add to the target's.

    Raises:
        UserError: if the model cannot be measured on this data set.
    """
    model, changed = measurable(model, name)
    notes += changed
    context = context.preprocessed_for(timm_cfg(model))
    mean, std = context.mean, context.std
    if mean is None and std is None and not context.takes_pixels:
        mean, std, replaced = _own_normalisation(name, model, context.dataset)
        notes += replaced
    classifier = Classifier(model, mean, std, name, binary=context.dataset.classes == 2)
    place = _place(classifier, "cpu")
    classifier.to(place)  # buffers may be on another device
    measured: nn.Module = classifier
    try:
        try:
            known, found = _known(classifier, context.dataset, place)
        except RandomModelError as error:
            if not context.eot:
                raise RandomModelError(f"{error}; bench --eot 10 measures random models") from error
            measured = EOTClassifier(classifier, context.eot, context.seed)
            known, found = _known_randomised(classifier, measured, context.dataset, place)
    except UserError as error:
        raise type(error)("; ".join([str(error), *changed])) from error
    notes += found
    params_m = sum(p.numel() for p in classifier.parameters()) / 1e6
    eot = known.get("eot", 0)
    weights = sha256 or known["state_sha256"]
    card = ModelCard(name, known, params_m=params_m, weights_sha256=weights, eot=eot)
    return Target(card, TargetLoader(lambda: measured, context.dataset, [place]), notes, context.dataset)


def to_channels_last(model: nn.Module) -> nn.Module:
    """Convert a timm model to channels last: attacks on a CPU take a sixth less time."""
    return model.to(memory_format=torch.channels_last)


def check_fits(what: str, classes: int, channels: int, context: Context, hint: str = "") -> None:
    """Refuse a model whose number of classes or channels is not the data set's.

    Args:
        what: Description of the model for the message.
        classes: Number of classes of the model.
        channels: Number of channels of the images that the model takes.
        context: The data set and the other settings of the model.
        hint: What the user can do instead, added to the message.

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
    """Return a note if the images have another height or width than `size` (C, H, W), the model's."""
    shape = context.dataset.shape
    if tuple(size[1:]) == shape[1:]:
        return ()
    made, given = ("x".join(map(str, pair)) for pair in (size[1:], shape[1:]))
    return (f"{name} is made for {made} images, according to its configuration; it is measured on {given}",)


def replaced_note(name: str, model: nn.Module, context: Context) -> tuple[str, ...]:
    """Return a note if the mean and std of the user replace those of the model's ``pretrained_cfg``."""
    cfg, mean, std = timm_cfg(model), context.mean, context.std
    if not cfg or mean is None or std is None:
        return ()
    own = [_per_channel(cfg, key, len(mean)) for key in ("mean", "std")]
    if own == [list(mean), list(std)]:
        return ()
    return (
        f"{name} came with mean {cfg['mean']} and std {cfg['std']}; the given mean and std are applied "
        "instead",
    )


def timm_cfg(model: nn.Module) -> Mapping[str, Any]:
    """Return the ``pretrained_cfg`` of a model; empty if it has none, or not one of timm's."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel | OneAtATime):
        model = model.module
    cfg = getattr(model, "pretrained_cfg", None)
    if cfg is not None and hasattr(cfg, "to_dict"):  # timm's own class
        cfg = cfg.to_dict()
    if not isinstance(cfg, Mapping) or cfg.get("mean") is None or cfg.get("std") is None:
        return {}
    return {**cfg, "mean": _plain(cfg["mean"]), "std": _plain(cfg["std"])}


def _plain(value: Any) -> Any:
    """Return a list of the items of a sequence, an array or a tensor; anything else as a plain value."""
    items = value.tolist() if hasattr(value, "tolist") else value
    return list(items) if isinstance(items, list | tuple) else items


def _per_channel(cfg: Mapping[str, Any], key: str, channels: int) -> list:
    """Return the mean or std of a cfg as a list, for so many channels if it can be.

    A number is that of every channel. So is the only item of a list if the cfg is for so many channels, since
    timm's transforms apply it to all of them. Otherwise it is that of a model of one channel.
    """
    values = cfg[key]
    if not isinstance(values, list):
        return [values] * channels
    size = cfg.get("input_size")
    repeated = len(values) == 1 and isinstance(size, list | tuple) and list(size[:1]) == [channels]
    return values * channels if repeated else values


def _place(classifier: nn.Module, otherwise: torch.device | str) -> str:
    """Return the name of the classifier's device; `otherwise` if it has no parameters."""
    return str(devices.of_module(classifier) or otherwise)


def _spread(dataset: data.Dataset) -> np.ndarray:
    """Return the ids of a few images, spread evenly over the data set, which may be sorted by class."""
    return np.unique(np.linspace(0, len(dataset) - 1, REPEATED_ON).astype(int))


def _pixels(dataset: data.Dataset, ids: np.ndarray, device: str) -> torch.Tensor:
    return torch.from_numpy(data.as_pixels(dataset.at(ids))).to(device)


def _known(classifier: Classifier, dataset: data.Dataset, place: str) -> tuple[dict, tuple[str, ...]]:
    """Check a classifier on a few images, and return its identity and notes."""
    spread = _spread(dataset)
    images = _pixels(dataset, spread, place)
    with measurement_mode(classifier), reported_for(classifier):
        return retry_with_smaller_batch(
            lambda count: _checked(classifier, images[:count], dataset, spread[:count]), len(images), place
        )


def _checked(
    classifier: Classifier, images: torch.Tensor, dataset: data.Dataset, ids: np.ndarray
) -> tuple[dict, tuple[str, ...]]:
    """Do the work of `_known` on these images (N, C, H, W), and switch to channels last if that helps."""
    labels = torch.from_numpy(dataset.labels[ids]).to(images.device)
    check_classifier(classifier, images, dataset.classes)
    passing = changed_by_forward(classifier, images)
    known = identity(classifier.model, passing) | {"behaviour": output_hash(classifier, images)}
    notes = one_output_notes(classifier, images) + output_notes(classifier, images)
    if stale_batch_norm(classifier, images, labels, dataset.classes):
        notes += (
            f"{classifier.name}: BatchNorm statistics look unset: with them the clean accuracy is "
            "at chance level, with batch statistics it is well above",
        )
    use_channels_last(classifier, images[:CHECKED_ON])  # after the identity was computed
    return known | {"normalisation": classifier.normalisation}, notes


def _known_randomised(
    classifier: Classifier, randomised: EOTClassifier, dataset: data.Dataset, place: str
) -> tuple[dict, tuple[str, ...]]:
    """Do the same as `_known` for a classifier that draws random numbers."""
    images = _pixels(dataset, _spread(dataset), place)
    with measurement_mode(randomised), reported_for(classifier):
        refuse_batch_statistics(classifier)
        check_classifier(randomised, images, dataset.classes)
        known = identity(classifier.model) | {
            "behaviour": output_hash(randomised, images),
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
    name: str, model: nn.Module, dataset: data.Dataset
) -> tuple[Sequence[float] | None, Sequence[float] | None, tuple[str, ...]]:
    """Return the mean and std of a model's ``pretrained_cfg``, None if it has none; and notes.

    If they have another number of channels, return those of the registered data set, with a note.
    """
    cfg = timm_cfg(model)
    if not cfg:
        return None, None, _not_applied(name, model)
    mean, std = (_per_channel(cfg, key, dataset.channels) for key in ("mean", "std"))
    if len(mean) == dataset.channels:
        return mean, std, ()
    if dataset.name not in data.DATASETS:
        raise UserError(
            f"{type(model).__name__} is normalised for another number of channels: pass mean and std"
        )
    kind = data.DATASETS[dataset.name]
    note = (
        f"{name} is normalised for {len(mean)} channels by its configuration: mean {list(kind.mean)} and std "
        f"{list(kind.std)} of {dataset.name} are applied instead"
    )
    return kind.mean, kind.std, (note,)


def _not_applied(name: str, model: nn.Module) -> tuple[str, ...]:
    """Return a note if a model without a ``pretrained_cfg`` was probably trained on normalised images."""
    if inner := _normalised_inside(model):
        return (
            f"{name} holds a timm model trained with mean {inner[0]} and std {inner[1]}; they are not "
            "applied: pass mean and std, unless the model normalises its input itself",
        )
    if hasattr(getattr(model, "config", None), "model_type"):
        return (
            f"{name} looks like a Hugging Face model; no normalisation is applied: pass mean and std, as "
            "its processor has them, unless the model normalises its input itself",
        )
    return ()


def _normalised_inside(model: nn.Module) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return mean and std of a timm model inside `model` that no Classifier applies, or None."""
    if isinstance(model, Classifier) and model.normalisation:
        return None
    cfg = timm_cfg(model)
    if cfg and any(_per_channel(cfg, "mean", 1)):
        return cfg["mean"], cfg["std"]
    return next(filter(None, map(_normalised_inside, model.children())), None)
