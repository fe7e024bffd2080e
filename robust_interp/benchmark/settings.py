"""Read and check the settings of a request: data set, model options, device, batch size, seeds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from robust_interp import data, zoo
from robust_interp.benchmark.forms import MOST_SEEDS
from robust_interp.benchmark.request import COMPILE, DEFAULT_SEEDS, Request
from robust_interp.classifiers.resolve import ResolveOptions
from robust_interp.core import threads
from robust_interp.core.devices import of_module, resolve_device
from robust_interp.core.errors import UserError
from robust_interp.core.numeric import whole_number
from robust_interp.core.paths import expanded
from robust_interp.corruptions import Corruptor
from robust_interp.corruptions.cache import Cache, cache_folder
from robust_interp.data.preprocessing import Preprocessing, fixed
from robust_interp.data.subset import FIRST, STRATIFIED
from robust_interp.store import CHUNK


def load_dataset(request: Request) -> data.Dataset:
    """Load the data set that a request names or contains, otherwise that of the checkpoints that it names.

    Raises:
        UserError: if it cannot be read, or an option for its images is invalid.
    """
    preprocessing = fixed(request.resize, request.crop, request.interpolation)
    workers = checked_count("decode_workers", request.decode_workers, 0)
    if isinstance(request.dataset, str) and data.is_source(request.dataset):
        options = data.SourceOptions(request.class_map, preprocessing, request.skip_unreadable, workers)
        found = data.open_source(request.dataset, options)
        by_default = STRATIFIED if found.is_by_class else FIRST
    else:
        _refuse_for_arrays(request, preprocessing)
        found, by_default = _arrays(request), FIRST
        if found.name not in data.DATASETS and request.n not in (None, "all") and found.is_by_class:
            by_default = STRATIFIED
    subset, seed = request.subset or by_default, checked_seed(request.subset_seed)
    if subset == FIRST and seed:
        raise UserError(
            f"subset_seed {seed} has no effect on the first n images: set subset to random or stratified"
        )
    return data.in_subset(found, subset, seed)


def _arrays(request: Request) -> data.Dataset:
    if isinstance(request.dataset, data.Dataset):
        return request.dataset
    joined = [request.ensemble] if isinstance(request.ensemble, str) else request.ensemble
    name = request.dataset or zoo.implied_dataset([*(request.models or ()), *joined])
    return data.load(name, "test", request.data_dir)


def _refuse_for_arrays(request: Request, preprocessing: Preprocessing | None) -> None:
    """Refuse options that apply to image files only.

    Raises:
        UserError: naming the first such option.
    """
    given = {
        "resize and crop": preprocessing,
        "class_map": request.class_map,
        "skip_unreadable": request.skip_unreadable,
    }
    if idle := [name for name, value in given.items() if value]:
        raise UserError(f"{idle[0]} cannot be used with arrays, only with image files, such as folder:PATH")


def resolve_options(request: Request) -> ResolveOptions:
    """Return the options of a request for its models.

    Raises:
        UserError: if a seed, `eot` or `ensembles` is invalid.
    """
    if not isinstance(request.ensembles, bool | np.bool_):
        raise UserError(f"ensembles must be True or False, not {request.ensembles!r}")
    named = request.models or request.modules or request.ensemble
    by_default = not (named or request.checkpoint or request.only_zoo)
    return ResolveOptions(
        zoo=request.zoo,
        only_zoo=request.only_zoo,
        checkpoint=request.checkpoint,
        mean=request.mean,
        std=request.std,
        weights_key=request.weights_key,
        seeds=DEFAULT_SEEDS if by_default and request.seeds is None else train_seeds(request.seeds),
        ensembles=bool(request.ensembles),
        ensemble=request.ensemble,
        average=request.ensemble_average,
        attacks=request.ensemble_attack,
        eot=checked_count("eot", request.eot, 1) or 0,
        seed=checked_seed(request.seed),
    )


def corruptor_of(request: Request, dataset: data.Dataset) -> Corruptor:
    """Make the source of the corrupted images of a request.

    Raises:
        UserError: if the seed is invalid, or the cache is in a home folder that does not exist.
    """
    folder = expanded(request.corruptions_dir) if request.corruptions_dir else None
    kept = cache_folder(request.cache)
    return Corruptor(dataset, checked_seed(request.seed), folder, Cache(kept) if kept else None)


def device_of(request: Request) -> torch.device:
    """Return the requested device, otherwise that of the model objects, otherwise the best of this machine.

    Raises:
        UserError: if this machine has no such device.
    """
    places = [of_module(module) for module in request.modules.values()]
    return resolve_device(request.device or next((str(place) for place in places if place), None))


def threads_of(request: Request) -> int | None:
    """Return the requested number of CPU threads; None if a short test chooses it.

    Raises:
        UserError: if it is not a valid number.
    """
    return None if request.threads is None else threads.checked(request.threads)


def checked_compile(value: object) -> str:
    """Return the setting `compile`.

    Raises:
        UserError: if it is not ``auto``, ``on`` or ``off``.
    """
    if value not in COMPILE:
        raise UserError(f"compile must be one of {', '.join(COMPILE)}, not {value!r}")
    return str(value)


def checked_batch_size(batch_size: object, device: torch.device) -> int:
    """Return the batch size; None gives the default of the device.

    Raises:
        UserError: if it is not a whole number of at least 1.
    """
    return checked_count("batch size", batch_size, 1) or (4 * CHUNK if device.type == "cuda" else CHUNK)


def sample_count(n: object, dataset: data.Dataset) -> int:
    """Return the number of images for `n`: a number, 'all', or None for the default of the data set.

    Raises:
        UserError: if it is invalid, or larger than the data set.
    """
    if n is None and dataset.name in data.DATASETS:
        n = data.DATASETS[dataset.name].default_n
    elif n is None and dataset.default_n is not None:
        n = min(dataset.default_n, len(dataset))
    if n in (None, "all"):
        return len(dataset)
    count = whole_number(n)
    if count is None or not 1 <= count <= len(dataset):
        raise UserError(f"n must be 1 to {len(dataset)}, the size of the {dataset.name} test set, not {n}")
    return count


def checked_seed(seed: object) -> int:
    """Return an attack seed.

    Raises:
        UserError: if it is not a whole number from 0 to 2**63 - 1.
    """
    number = whole_number(seed)
    if number is None or not 0 <= number < 2**63:
        raise UserError(f"seed must be a whole number from 0 to 2**63 - 1, not {seed}")
    return number


def train_seeds(seeds: object) -> tuple[int, ...] | None:
    """Return the train seeds: 3 gives 0, 1, 2; those of a list are sorted, each once; None means all.

    Raises:
        UserError: if it is neither a whole number of at least 1 nor a list of whole numbers of at least 0.
    """
    if seeds is None:
        return None
    if (count := whole_number(seeds)) is not None:
        if count > MOST_SEEDS:
            raise UserError(f"seeds={count} would be that many seeds; seed {count} alone is ({count},)")
        found: list[int | None] = list(range(count))
    else:
        found = [whole_number(seed) for seed in seeds] if isinstance(seeds, Iterable) else []
    whole = [seed for seed in found if seed is not None and seed >= 0]
    if not whole or len(whole) < len(found):
        raise UserError(
            "seeds must be how many of the first there are (3 means 0, 1, 2), or which, such as (0, 4), "
            f"not {seeds!r}"
        )
    return tuple(sorted(set(whole)))


def checked_count(name: str, value: object, least: int) -> int | None:
    """A whole number of at least `least`; None for None.

    Raises:
        UserError: calling it by its name, if it is anything else.
    """
    number = whole_number(value)
    if value is not None and (number is None or number < least):
        raise UserError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return number
