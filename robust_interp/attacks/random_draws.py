"""Random numbers of an attack, keyed by attack seed, image id and round: the same in any batch.

torchattacks draws for a whole batch from torch's global generator, so the numbers for an image depend on the
other images of the batch. Two mechanisms replace this. `KeyedDraws` replaces the draws of an attack that runs
on a batch. `seed_generators` seeds the global generators for an attack that runs on one image. `plugin_draws`
uses both: what a plug-in draws is not known in advance.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from robust_interp.core.random_state import generator_states
from robust_interp.store.cells import Perturbation

Draw = Callable[[np.random.Generator, Sequence[int]], np.ndarray]

_START, _SHARED, _ALONE = (
    zlib.crc32(name) for name in (b"attack start", b"attack shared", b"attack one sample")
)


class PartOfABatch(BaseException):
    """An attack drew random numbers for a part of its batch, and it is not known for which images.

    This is not a failure: the attack then runs on one image at a time. So it is no Exception, which the code
    of an attack may catch.
    """


def start_noise(
    perturbation: Perturbation, ids: Iterable[int], shape: Sequence[int], number: int = 0, call: int = 0
) -> np.ndarray:
    """Return uniform random numbers in [0, 1), float32 of shape (N, *shape), that do not depend on the batch.

    Args:
        perturbation: A random attack.
        ids: Ids of the N images.
        shape: Shape of the draw for one image.
        number: Number of the round of the attack (restart, target class), from 0.
        call: Number of the draw within the round, from 0.
    """
    return _by_sample(_seed(perturbation), ids, shape, number, call, _uniform)


def _seed(perturbation: Perturbation) -> int:
    if perturbation.seed is None:
        raise ValueError(f"{perturbation.column} has no attack seed, because it is not random")
    return perturbation.seed


def _by_sample(
    seed: int, ids: Iterable[int], shape: Sequence[int], number: int, call: int, draw: Draw
) -> np.ndarray:
    later = (number, call) if number or call else ()
    return np.stack([draw(np.random.default_rng((seed, _START, int(key), *later)), shape) for key in ids])


def _uniform(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return rng.random(tuple(shape), dtype=np.float32)


def _normal(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return rng.standard_normal(tuple(shape), dtype=np.float32)


class KeyedDraws(TorchFunctionMode):
    """A context that replaces torch's uniform and normal draws by keyed ones.

    A draw of rank 4, (N, ., ., .), uses a separate stream for each image. Any other draw is shared by the
    batch, such as the position of Square's window. It depends on the attack seed, the round and the number
    of the draw.

    Args:
        perturbation: A random attack.
        ids: Ids of the images in the batch.
        number: Number of the round, from 0.

    Raises:
        PartOfABatch: if a draw of rank 4 is not for the whole batch.
    """

    def __init__(self, perturbation: Perturbation, ids: Sequence[int] | np.ndarray, number: int) -> None:
        super().__init__()
        self._perturbation, self._ids, self._number, self._call = perturbation, ids, number, 0

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        shape = _shape_of_draw(func, args, kwargs)
        if shape is None:
            return func(*args, **kwargs)
        if func is torch.Tensor.uniform_:
            return _uniform_in_place(*args, **kwargs, unit=self._unit)
        if func is torch.Tensor.normal_:
            return _normal_in_place(*args, **kwargs, standard=self._standard)
        noise = (self._unit if func in (torch.rand, torch.rand_like) else self._standard)(shape)
        if func in (torch.rand_like, torch.randn_like):
            noise = noise.to(args[0] if args else kwargs["input"])
        noise = noise.to(device=kwargs.get("device"), dtype=kwargs.get("dtype"))
        return noise.requires_grad_(bool(kwargs.get("requires_grad")))

    def _unit(self, shape: Sequence[int]) -> Tensor:
        if len(shape) != 4:
            return self._shared(shape, _uniform)
        noise = start_noise(self._perturbation, self._whole(shape), shape[1:], self._number, self._next())
        return torch.from_numpy(noise)

    def _standard(self, shape: Sequence[int]) -> Tensor:
        if len(shape) != 4:
            return self._shared(shape, _normal)
        ids, seed = self._whole(shape), _seed(self._perturbation)
        return torch.from_numpy(_by_sample(seed, ids, shape[1:], self._number, self._next(), _normal))

    def _whole(self, shape: Sequence[int]) -> Sequence[int] | np.ndarray:
        if shape[0] != len(self._ids):
            raise PartOfABatch
        return self._ids

    def _shared(self, shape: Sequence[int], draw: Draw) -> Tensor:
        key = (_seed(self._perturbation), _SHARED, self._number, self._next())
        return torch.from_numpy(np.asarray(draw(np.random.default_rng(key), shape)))

    def _next(self) -> int:
        self._call += 1
        return self._call - 1


def _shape_of_draw(func: Callable, args: tuple, kwargs: dict[str, Any]) -> Sequence[int] | None:
    """Return the shape of a uniform or normal draw of torch; None for any other function."""
    if func in (torch.rand, torch.randn):
        sizes = kwargs.get("size", args)
        return sizes[0] if sizes and isinstance(sizes[0], Sequence) else sizes
    if func in (torch.Tensor.uniform_, torch.Tensor.normal_, torch.rand_like, torch.randn_like):
        return (args[0] if args else kwargs["input"]).shape
    return None


class _PluginDraws(KeyedDraws):
    """`KeyedDraws` that replaces only draws of rank 4 for the whole batch.

    Any other draw is refused for several images, since it is not known for which of them it is. For one
    image it is left to the generators.
    """

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        shape = _shape_of_draw(func, args, kwargs)
        is_draw = shape is not None or kwargs.get("generator") is not None
        if shape is not None and len(shape) == 4 and shape[0] == len(self._ids) and "out" not in kwargs:
            return super().__torch_function__(func, types, args, kwargs)
        if is_draw and len(self._ids) > 1:
            raise PartOfABatch
        return func(*args, **kwargs)


@contextmanager
def plugin_draws(perturbation: Perturbation, ids: Sequence[int] | np.ndarray, number: int) -> Iterator[None]:
    """Make all draws of a plug-in inside this context depend only on the seed, the round and the image.

    A uniform or normal draw of rank 4 for the whole batch is keyed as by `KeyedDraws`, for one image as for
    several. For one image, the other draws come from the global generators, which are seeded for it.

    Args:
        perturbation: A random attack.
        ids: Ids of the images in the batch.
        number: Number of the round, from 0.

    Raises:
        PartOfABatch: if there is any other draw for several images; at the end of the context, if it was not
            made by a function that torch lets us see.
    """
    seed_generators(perturbation.seed, int(ids[0]), number)
    before = generator_states()
    with _PluginDraws(perturbation, ids, number):
        yield
    if len(ids) > 1 and generator_states() != before:
        raise PartOfABatch


def _uniform_in_place(
    tensor: Tensor,
    low: float = 0.0,
    high: float = 1.0,
    *,
    unit: Callable[[Sequence[int]], Tensor],
    generator: torch.Generator | None = None,
    **ends: float,  # `to`, and `from`, which is a keyword in Python
) -> Tensor:
    low, high = ends.get("from", low), ends.get("to", high)
    return tensor.copy_(low + (high - low) * unit(tensor.shape).to(tensor))


def _normal_in_place(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    standard: Callable[[Sequence[int]], Tensor],
    generator: torch.Generator | None = None,
) -> Tensor:
    return tensor.copy_(mean + std * standard(tensor.shape).to(tensor))


def seed_generators(seed: int | None, sample: int, number: int) -> None:
    """Seed all global generators of torch, numpy and Python for one image in one round.

    Args:
        seed: The attack seed; None counts as 0.
        sample: Id of the image.
        number: Number of the round, from 0.
    """
    seed_all(seed or 0, _ALONE, int(sample), number)


def seed_all(*key: int) -> None:
    """Seed all global generators of torch, numpy and Python with non-negative integers."""
    state = np.random.SeedSequence(key).generate_state(2)
    number = int(state[0]) << 32 | int(state[1])
    torch.default_generator.manual_seed(number)  # torch.manual_seed takes milliseconds without CUDA
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)
    np.random.seed(state)
    random.seed(state.tobytes())
