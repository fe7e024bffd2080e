"""Checks of plug-ins: models, attacks, corruptions and data sets."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from robust_interp import data, zoo
from robust_interp.attacks import ATTACKS, AttackRunner, AttackType, parse_attacks
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.classifiers.validation import check_classifier
from robust_interp.core.errors import UserError
from robust_interp.core.random_state import generator_states, preserved_rng_state
from robust_interp.core.registry import Registry
from robust_interp.corruptions import CORRUPTIONS, SEVERITIES
from robust_interp.corruptions.table import MAY_BE_OUTSIDE, NOT_PIXELS, Corrupt, obstacle, share_outside
from robust_interp.data import DATASETS, DatasetType
from robust_interp.store.cells import Perturbation

__all__ = ["check_attack", "check_corruption", "check_dataset", "check_model"]

SAMPLES = 8
MAY_DIFFER = 0.01  # share of values that may change with the batch size, e.g. by rounding before a sign
ENOUGH = 10_000  # number of images to compute a mean from
MEAN_TOLERANCE = 0.01  # for the mean and std of a data set, in [0, 1] pixels


def check_model(
    model: str | nn.Module | Callable[[], nn.Module],
    classes: int = 10,
    shape: tuple[int, int, int] = (3, 32, 32),
) -> None:
    """Check a model on random pixels.

    Args:
        model: Name of a timm model, which is built for `classes` and the channels of `shape`; a function
            that builds the model; or a model. For the first two, the weights are also loaded into a second
            build.
        classes: Number of classes.
        shape: (C, H, W) of an image.

    Raises:
        AssertionError: if in eval mode it is random, depends on the other images of the batch or changes its
            state; if it has no finite gradient; or if two builds with equal weights differ.
    """
    name = model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)
    build = _builder(model, classes, shape[0])
    with preserved_rng_state(), _said_of(name):
        network = build()
        _require(isinstance(network, nn.Module), f"it is a {type(network).__name__}, not a torch module")
        if isinstance(model, str):
            _check_cfg(network, classes)
        classifier = Classifier(network, name=name)
        images = _images(shape)
        with measurement_mode(classifier):
            check_classifier(classifier, images, classes)
            _check_forward(classifier, images)
            if not isinstance(model, nn.Module):
                _check_reload(build, classifier, images)


def check_attack(
    attack: str | AttackType,
    params: Mapping | None = None,
    eps: tuple[float, ...] = (2 / 255, 16 / 255),
    model: nn.Module | None = None,
    images: Tensor | None = None,
) -> None:
    """Check an attack on a small network with random weights, or on `model`.

    Args:
        attack: Registered name of the attack, or the attack itself.
        params: Parameters of the attack that differ from its defaults.
        eps: Radii in [0, 1] pixels, in the norm of the attack; not needed by attacks that search for the
            smallest change.
        model: Model that maps `images` to logits; by default a small convolutional network for RGB images.
        images: Images (N, C, H, W), float32 in [0, 1], at least 4; by default random ones. Their labels are
            the predictions of the model.

    Raises:
        AssertionError: if a result has another shape, is outside [0, 1] or the radius, or is not finite; if
            no image changes; if a result depends on the batch or on a global random generator; or if the
            images, the labels or the model are changed.
    """
    with preserved_rng_state(), _registered(ATTACKS, attack) as name, _said_of(name):
        classifier = Classifier(model or _small_network(), name="the model")
        images = _images((3, 32, 32)) if images is None else images
        with measurement_mode(classifier):
            _check_attack(name, params or {}, eps, classifier, images)


def check_corruption(corruption: str | Corrupt, shape: tuple[int, int, int] = (3, 32, 32)) -> None:
    """Check a corruption on random images of `shape` (C, H, W), at each severity.

    Args:
        corruption: Registered name of the corruption, or the function itself.
        shape: Shape (C, H, W) of an image.

    Raises:
        AssertionError: if a result has another shape, is not finite, or cannot be pixels; if it depends on
            anything besides the image, the severity and the generator; if it uses a global random
            generator; or if it changes no image.
    """
    with preserved_rng_state(), _registered(CORRUPTIONS, corruption) as name, _said_of(name):
        why_not = obstacle(name, shape)
        _require(why_not is None, f"it cannot be generated here: {why_not}")
        images = _images(shape).double().numpy()
        for severity in SEVERITIES:
            _check_corruption_at(CORRUPTIONS[name], images, severity)


def check_dataset(
    dataset: str | DatasetType, data_dir: str | None = None, splits: tuple[str, ...] = data.SPLITS
) -> None:
    """Check a data set.

    Args:
        dataset: Registered name of the data set, or the data set itself.
        data_dir: Folder of its files; by default the folder that commands use.
        splits: Splits to check; use ``("test",)`` for a data set without training images.

    Raises:
        AssertionError: if images or labels do not have the declared shape, range and classes, or change when
            they are loaded again; if mean and std are not those of the training pixels; if the default radii
            are not in units of 1/255; or if the default n is larger than the test set.
    """
    kind = dataset if isinstance(dataset, DatasetType) else DATASETS[dataset]
    with preserved_rng_state(), _said_of(kind.name):
        _check_description(kind)
        for split in splits:
            loaded = _check_split(kind, split, data_dir)
            if split == "train":
                _check_statistics(kind, loaded.images)
            elif split == "test":
                _require(
                    kind.default_n is None or kind.default_n <= len(loaded),
                    f"its default_n is {kind.default_n}, but the test set has {len(loaded)} images",
                )


def _require(condition: object, otherwise: str) -> None:
    """Raise an AssertionError if the condition is false, also with python -O."""
    if not condition:
        raise AssertionError(otherwise)


@contextmanager
def _said_of(name: str) -> Iterator[None]:
    """Turn exceptions inside the context into an AssertionError that contains the name of what is checked."""
    try:
        yield
    except (AssertionError, UserError, RuntimeError) as error:
        message = str(error)
        raise AssertionError(message if name in message else f"{name}: {message}") from error


def _seed_globally(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def _registered(registry: Registry, given: object) -> Iterator[str]:
    """Yield the registered name of what is checked. An object is registered as long as the check runs."""
    if isinstance(given, str):
        registry[given]  # raises if the name is unknown or its plug-in is broken
        yield given
        return
    if not isinstance(given, registry.holds):
        raise AssertionError(f"its type is {type(given).__name__}, not {registry.holds.__name__}")
    function = given.torchattacks_class if isinstance(given, AttackType) else given
    name = re.sub(r"\W", "", "given_" + getattr(function, "__name__", registry.kind))
    with registry.registered(name, given):
        yield name


def _images(shape: tuple[int, int, int]) -> Tensor:
    return torch.rand((SAMPLES, *shape), generator=torch.Generator().manual_seed(0))


# Models.


def _builder(
    model: str | nn.Module | Callable[[], nn.Module], classes: int, channels: int
) -> Callable[[], nn.Module]:
    if isinstance(model, str):
        return lambda: zoo.create(model, num_classes=classes, in_chans=channels)
    return (lambda: model) if isinstance(model, nn.Module) else model


def _check_cfg(network: nn.Module, classes: int) -> None:
    cfg = getattr(network, "pretrained_cfg", None) or {}
    _require(cfg, "it has no pretrained_cfg: build it with timm.models.build_model_with_cfg")
    for key in ("mean", "std", "first_conv", "classifier"):
        _require(key in cfg, f"its pretrained_cfg lacks {key}")
    for attribute in ("num_classes", "num_features"):
        _require(hasattr(network, attribute), f"it has no {attribute}, which a checkpoint records")
    _require(network.num_classes == classes, f"it has {network.num_classes} classes instead of {classes}")


def _check_forward(classifier: Classifier, images: Tensor) -> None:
    before = _state(classifier)
    pixels = images.clone().requires_grad_()
    logits = classifier(pixels.clone())
    _require(logits.dtype == torch.float32, f"its logits are {logits.dtype}, not float32")
    masked = logits == -torch.inf  # the mask of a class that is never predicted
    _require((logits.isfinite() | masked).all(), "its logits are not finite")
    _require(not masked.all(1).any(), "its logits mask every class of an image with -inf")
    _require(
        _state(classifier) == before, "a forward pass in eval mode changes its parameters, buffers or mode"
    )
    _require(logits.requires_grad, "it lets no gradient through to its input")
    (gradient,) = torch.autograd.grad(logits[~masked].square().sum(), pixels, allow_unused=True)
    _require(gradient is not None, "it lets no gradient through to its input")
    _require(gradient.isfinite().all(), "the gradient at its input is not finite")
    _require(gradient.any(), "the gradient at its input is zero")


def _check_reload(build: Callable[[], nn.Module], classifier: Classifier, images: Tensor) -> None:
    other = Classifier(build(), name=classifier.name)
    other.model.load_state_dict(classifier.model.state_dict())
    with measurement_mode(other), torch.no_grad():
        same = torch.allclose(other(images.clone()), classifier(images.clone()), rtol=1e-3, atol=1e-4)
    _require(same, "two builds with equal weights give different logits: its state dict is incomplete")


def _state(module: nn.Module) -> list[tuple]:
    """Return everything that a measurement must not change, in a form that can be compared."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [
        *((name, t.requires_grad, t.grad is None, t.detach().cpu().numpy().tobytes()) for name, t in tensors),
        *((name, part.training) for name, part in module.named_modules()),
    ]


# Attacks.


def _small_network() -> nn.Module:
    """Return a small network with random weights for RGB images.

    With BatchNorm and dropout, a change of the mode changes its results.
    """
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Dropout(),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def _check_attack(
    name: str, params: Mapping, eps: Sequence[float], classifier: nn.Module, images: Tensor
) -> None:
    labels = classifier(images).argmax(1)
    for radius in [None] if ATTACKS[name].minimal else eps:
        given = params if radius is None else {"eps": radius, **params}
        written = ", ".join(f"{key}={value}" for key, value in given.items())
        [perturbation] = parse_attacks(f"{name}({written})", [], {}, seed=0)
        _check_attack_at(perturbation, classifier, images, labels)


def _check_attack_at(
    perturbation: Perturbation, classifier: nn.Module, images: Tensor, labels: Tensor
) -> None:
    kind = ATTACKS[perturbation.name]
    if callable(kind.torchattacks_class):
        _check_by_itself(kind.torchattacks_class, perturbation.params, classifier, images, labels)
    attack = AttackRunner(perturbation, classifier)
    _seed_globally(0)
    attacked = attack(images, labels, range(len(images)))
    _require(not attacked.not_finite.any(), f"{perturbation.column} returns values that are not finite")
    found = attacked.images
    _require(not torch.equal(found, images), f"{perturbation.column} changes no image")
    _seed_globally(1)
    again = attack(images, labels, range(len(images))).images
    _require(
        _alike(found, again),
        f"{perturbation.column} gives different results when repeated: it must draw from the global "
        "generators of torch, NumPy or Python, and be declared with random=True",
    )
    for size in (1, len(images) // 2 + 1):
        parts = [range(at, min(at + size, len(images))) for at in range(0, len(images), size)]
        each = [attack(images[p.start : p.stop], labels[p.start : p.stop], p).images for p in parts]
        _require(
            _alike(found, torch.cat(each)),
            f"{perturbation.column} gives different results in batches of {size}: the result for an image "
            "must not depend on the others",
        )


def _check_by_itself(
    make: Callable, params: Mapping, classifier: nn.Module, images: Tensor, labels: Tensor
) -> None:
    """Check that an attack, called directly, returns images and changes neither its inputs nor the model."""
    given, of = images.clone(), labels.clone()
    before = _state(classifier)
    found = make(classifier, **params)(given, of)
    _require(isinstance(found, Tensor), f"it returns a {type(found).__name__}, not a tensor of images")
    _require(found.shape == images.shape, f"it returns shape {tuple(found.shape)} for {tuple(images.shape)}")
    _require(found.dtype == images.dtype, f"it returns {found.dtype} for {images.dtype}")
    unchanged = torch.equal(given, images) and torch.equal(of, labels) and not given.requires_grad
    _require(unchanged, "it changes its input images or labels: work on a copy")
    _require(
        _state(classifier) == before,
        "it changes the mode, parameters, buffers or gradients of the model",
    )


def _alike(one: Tensor, other: Tensor) -> bool:
    return ((one - other).abs() > 1e-5).double().mean().item() <= MAY_DIFFER


# Corruptions.


def _check_corruption_at(function: Corrupt, images: np.ndarray, severity: int) -> None:
    _seed_globally(0)
    state = generator_states()
    found = [function(image.copy(), severity, np.random.default_rng(at)) for at, image in enumerate(images)]
    _require(
        state == generator_states(),
        "it draws from or seeds a global random generator: use the generator argument",
    )
    for corrupted in found:
        _require(
            isinstance(corrupted, np.ndarray), f"it returns a {type(corrupted).__name__}, not a NumPy array"
        )
        _require(
            corrupted.shape == images[0].shape, f"it returns shape {corrupted.shape} for {images[0].shape}"
        )
        _require(np.isfinite(corrupted).all(), "it returns values that are not finite")
    outside = [share_outside(each, image) for each, image in zip(found, images, strict=True)]
    _require(np.mean(outside) <= MAY_BE_OUTSIDE, f"it {NOT_PIXELS}")
    for at in reversed(range(len(images))):
        again = function(images[at].copy(), severity, np.random.default_rng(at))
        _require(
            np.array_equal(found[at], again),
            "it gives different results when repeated: the result must depend only on the image, "
            "severity and generator, not on other images or generators",
        )
    pixels = [c / 255 if c.dtype == np.uint8 else c.clip(0, 1) for c in found]
    _require(not np.array_equal(np.stack(pixels), images), f"severity {severity} changes no image")


# Datasets.


def _check_description(kind: DatasetType) -> None:
    _require(re.fullmatch("[a-z0-9]+", kind.name), f"its name {kind.name!r} must contain only a-z and 0-9")
    for eps in kind.eps_255:
        _require(eps >= 0.1, f"its default radius {eps} is not in units of 1/255")


def _check_split(kind: DatasetType, split: str, data_dir: str | None) -> data.ArrayDataset:
    loaded = []
    for seed in (0, 1):
        _seed_globally(seed)
        loaded.append(data.from_arrays(*data.read_split(kind, split, data_dir), kind.classes, kind.name))
    first, second = loaded
    _require(
        first.images.shape[1:] == tuple(kind.shape),
        f"its {split} images have shape {first.images.shape[1:]}, not {tuple(kind.shape)} as declared",
    )
    _require(
        first.fingerprint == second.fingerprint,
        f"its {split} set changes when it is loaded again: image i must always be the same image",
    )
    if absent := set(range(kind.classes)) - set(first.labels.tolist()):
        raise AssertionError(f"its {split} set has no image of class {min(absent)}")
    return first


def _check_statistics(kind: DatasetType, images: np.ndarray) -> None:
    pixels = data.as_pixels(images[:: max(1, len(images) // ENOUGH)])
    found = pixels.mean(axis=(0, 2, 3), dtype=np.float64), pixels.std(axis=(0, 2, 3), dtype=np.float64)
    for key, values, measured in zip(("mean", "std"), (kind.mean, kind.std), found, strict=True):
        _require(
            np.abs(np.subtract(values, measured)).max() <= MEAN_TOLERANCE,
            f"its {key} is {tuple(values)}, but its training pixels have {tuple(measured.round(4).tolist())}",
        )
