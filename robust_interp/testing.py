"""Checks for the tests of other people's plug-ins: does it keep to what a benchmark relies on?

Each check takes a registered name or the thing itself, and raises an AssertionError that says which rule is
broken. ::

    from robust_interp.testing import check_attack

    def test_my_attack():
        check_attack("my_attack")
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from robust_interp import data, plugins, zoo
from robust_interp.attacks import ATTACKS, AttackType, BoundAttack, resolve
from robust_interp.cells import Perturbation
from robust_interp.corruptions import CORRUPTIONS, SEVERITIES, Corrupt
from robust_interp.data import DATASETS, DatasetType
from robust_interp.errors import UserError
from robust_interp.victim import Victim, check_victim, undisturbed

__all__ = ["check_attack", "check_corruption", "check_dataset", "check_model"]

SAMPLES = 8
MAY_DIFFER = 0.01  # share of the pixels whose sign step may turn on the rounding of another batch size
MEAN_TOLERANCE = 0.01  # of a dataset's mean and std, in [0, 1] pixels


def check_model(
    model: str | nn.Module | Callable[[], nn.Module],
    classes: int = 10,
    shape: tuple[int, int, int] = (3, 32, 32),
) -> None:
    """Check a model on random pixels.

    Args:
        model: A timm name, which is built for `classes` and the channels of `shape`; a function that builds
            the model; or a model. What is built is also saved and loaded again.
        classes: Number of classes.
        shape: (C, H, W) of an image.

    Raises:
        AssertionError: if it is not a deterministic classifier of single images in eval mode, changes its
            input or its own state, lets no finite gradient through, or, built twice, differs with equal
            weights.
    """
    name = model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)
    build = _builder(model, classes, shape[0])
    with _global_state(), _said_of(name):
        network = build()
        assert isinstance(network, nn.Module), f"it is a {type(network).__name__}, not a torch module"
        if isinstance(model, str):
            _check_cfg(network, classes)
        victim = Victim(network, name=name)
        images = _images(shape)
        with undisturbed(victim):
            check_victim(victim, images, classes)
            _check_forward(victim, images)
            if not isinstance(model, nn.Module):
                _check_reload(build, victim, images)


def check_attack(
    attack: str | AttackType,
    params: Mapping | None = None,
    eps: tuple[float, ...] = (2 / 255, 16 / 255),
    model: nn.Module | None = None,
    images: Tensor | None = None,
) -> None:
    """Check an attack on a small network with random weights, or on yours.

    Args:
        params: The attack's parameters, where they are not its defaults.
        eps: Radii in [0, 1] pixels.
        model: Maps `images` to logits; by default a small convolutional network for RGB images.
        images: (N, C, H, W) float32 in [0, 1], at least 4; each is attacked from the class that it is given.

    Raises:
        AssertionError: if a result is of another shape, outside [0, 1] or the ball, or not finite; if no image
            changes; if a result depends on the batch or on a global random generator; or if the images, the
            labels or the model are not as they were.
    """
    with _global_state(), _registered(ATTACKS, "attack", attack) as name, _said_of(name):
        victim = Victim(model or _small_network(), name="the model").eval().requires_grad_(False)
        images = _images((3, 32, 32)) if images is None else images
        labels = victim(images).argmax(1)
        for radius in eps:
            [perturbation] = resolve(name, [radius], dict(params or {}), seed=0)
            _check_attack_at(perturbation, victim, images, labels)


def check_corruption(corruption: str | Corrupt, shape: tuple[int, int, int] = (3, 32, 32)) -> None:
    """Check a corruption on random images of `shape` (C, H, W), at each severity.

    Raises:
        AssertionError: if a result is of another shape or not finite; if it does not follow from the image,
            the severity and the generator alone; if the image or a global random generator is not as it was;
            or if severity 5 changes the images less than severity 1.
    """
    with _global_state(), _registered(CORRUPTIONS, "corruption", corruption) as name, _said_of(name):
        function = CORRUPTIONS[name]
        images = _images(shape).double().numpy()
        changes = [_check_corruption_at(function, images, severity) for severity in SEVERITIES]
        assert changes[-1] >= changes[0], "severity 5 changes the images less than severity 1 does"


def check_dataset(
    dataset: str | DatasetType, data_dir: str | None = None, splits: tuple[str, ...] = data.SPLITS
) -> None:
    """Check a dataset whose files, if it needs any, are in `data_dir`.

    Args:
        splits: Those to check; give ``("test",)`` for a dataset that is only measured on.

    Raises:
        AssertionError: if images or labels are not of the declared shape, range and classes, or not the same
            when loaded again; or if mean and std are not those of the training pixels, the default radii are
            not radii in units of 1/255, or the default n is more than the test set has.
    """
    kind = dataset if isinstance(dataset, DatasetType) else DATASETS[dataset]
    root = data.data_root(data_dir)
    with _global_state(), _said_of(kind.name):
        _check_description(kind)
        for split in splits:
            loaded = _check_split(kind, split, root)
            if split == "train":
                _check_statistics(kind, loaded.images)
            elif split == "test":
                assert kind.default_n <= len(loaded), (
                    f"its default_n is {kind.default_n}, but the test set has {len(loaded)} images"
                )


@contextmanager
def _said_of(name: str) -> Iterator[None]:
    """An AssertionError that names what was checked, also for what a measurement would refuse."""
    try:
        yield
    except (AssertionError, UserError) as error:
        message = str(error)
        raise AssertionError(message if name in message else f"{name}: {message}") from error


@contextmanager
def _global_state() -> Iterator[None]:
    """The global random generators as they were, whatever a check did to them."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _seed_globally(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _global_draw() -> tuple:
    """What the global generators would give next: it tells whether anything drew from them."""
    states = random.getstate(), str(np.random.get_state()), torch.random.get_rng_state().tolist()
    return states


@contextmanager
def _registered(registry, kind: str, given) -> Iterator[str]:
    """The name of `given`, which is registered under a name of its own for the time of a check."""
    if isinstance(given, str):
        registry[given]  # an unknown or broken one raises UserError
        yield given
        return
    assert isinstance(given, registry.holds), f"it is a {type(given).__name__}, not a {registry.holds.__name__}"
    yield from registry.lent(f"checked_{kind}", given)


def _images(shape: tuple[int, int, int]) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand((SAMPLES, *shape), generator=generator)
