"""`evaluate`, the benchmark as a function."""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset

from robust_interp import data
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.cost import cost
from robust_interp.benchmark.request import Request
from robust_interp.benchmark.settings import checked_count
from robust_interp.benchmark.watch import UNWATCHED, Shares
from robust_interp.classifiers.isolation import on_its_device
from robust_interp.classifiers.objects import name_of
from robust_interp.core import environment, precision
from robust_interp.core.devices import by_default
from robust_interp.core.errors import UserError
from robust_interp.core.numeric import whole_number
from robust_interp.core.paths import expanded
from robust_interp.core.random_state import preserved_rng_state
from robust_interp.core.registry import nearest
from robust_interp.core.units import eps_in_pixels
from robust_interp.core.work import ProgressCallback
from robust_interp.core.worker_pool import Workers
from robust_interp.data.subset import FIRST
from robust_interp.results.folders import write
from robust_interp.store import Store

P = ParamSpec("P")
R = TypeVar("R")


def _with_hints(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that its TypeError for an unknown keyword argument suggests a similar name."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def hinting(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                near = nearest(name, known)
                hint = f"; did you mean {near}?" if near else ""
                called = f"{function.__name__}() got an unexpected keyword argument {name!r}"
                raise TypeError(called + hint)
        return function(*args, **kwargs)

    return hinting


@_with_hints
def evaluate(
    models: str | Sequence[str] | nn.Module | Mapping[str, nn.Module] | None = None,
    dataset: str | tuple | Iterable | TorchDataset | None = None,
    *,
    out: str | os.PathLike | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    attacks: str | Sequence[str] = "fgsm,ifgsm,pgd",
    eps: float | str | Sequence[float | str] | None = None,
    corruptions: str | Sequence[str] = "noise",
    seeds: int | Sequence[int] | None = None,
    ensembles: bool = True,
    ensemble: str | Sequence[str] = (),
    ensemble_average: str | None = None,
    ensemble_attack: str | Sequence[str] | None = None,
    n: int | str | None = None,
    subset: str | None = None,
    subset_seed: int = 0,
    class_map: str | os.PathLike | None = None,
    resize: int | None = None,
    crop: int | None = None,
    interpolation: str | None = None,
    skip_unreadable: bool = False,
    decode_workers: int | None = None,
    protocol: str = "final",
    attack_precision: str = "float32",
    compile: str = "auto",
    eot: int | None = None,
    round_to_8_bit: bool = False,
    batch_size: int | None = None,
    device: str | None = None,
    seed: int = 0,
    data_dir: str | os.PathLike | None = None,
    corruptions_dir: str | os.PathLike | None = None,
    cache: str | os.PathLike | None = None,
    zoo: str | os.PathLike | None = None,
    only_zoo: bool = False,
    checkpoint: str | os.PathLike | None = None,
    weights_key: str | None = None,
    strong: str | None = None,
    strong_n: int | None = None,
    threads: int | None = None,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> pd.DataFrame:
    """Measure models and return results.csv as a table, one row per measurement.

    Calls in several threads of one process run one after the other.

    Args:
        models: Zoo names, ``NAME@RECIPE``, globs or 'all', ``timm:NAME``, ``hf:NAME``, ``robustbench:NAME``,
            ``package.module:factory``, checkpoint folders; or a torch module that maps images to logits, or a
            dict of such modules by name. A single module is called by its timm architecture, otherwise by its
            class; recipe and train seed are those of the bundled checkpoint with the same weights. None means
            'all' with the train seeds 0, 1, 2.
        dataset: A registered name; a source: ``folder:PATH``, ``imagenet:PATH``, ``npz:FILE``,
            ``parquet:FILE`` or ``hf:NAME``; (images, labels) or (images, labels, number of classes): images
            are (N, C, H, W) in [0, 1] or uint8, labels (N,); or a torch Dataset or DataLoader, or batches of
            (images, labels), alone or as (loader, number of classes). None means the data set of the
            checkpoints that are named in full, otherwise digits.
        out: Folder of the store and the CSV files; with None, nothing is saved.
        mean: Mean for the normalisation of models that are not from the zoo, one number per channel, for [0,
            1] pixels. None means the normalisation stored with the model, such as a timm model's
            ``pretrained_cfg``; other models then get the pixels as they are.
        std: Standard deviation for the same normalisation.
        attacks: Specs such as ``pgd(alpha=eps/4, steps=50)``, separated by commas or in a list; 'none' or ()
            means no attack.
        eps: Linf radii: numbers in [0, 1] pixels, e.g. ``(2/255, 4/255)``, or texts as on the command line,
            e.g. ``"2,4"`` in units of 1/255; None means the defaults of the data set.
        corruptions: noise, common, extra, all, names such as ``fog(severity=3)``, separated by commas or in a
            list; 'none' or () means no corruption.
        seeds: Train seeds to take from the zoo (3 means 0, 1, 2); None means all.
        ensembles: Whether the seeds of a model are also measured as one averaged classifier.
        ensemble: Additional ensembles of measured models, joined by ``+``: names, full names of checkpoints,
            globs or 'all', such as ``in_resnet20+preact_resnet20``.
        ensemble_average: What an ensemble averages: ``probabilities`` (default) or ``logits``.
        ensemble_attack: What attacks on ensembles target: ``white-box`` (default, the ensemble itself),
            ``member:0``, ``mean-gradient``. Each listed way is measured separately.
        n: Number of test images, from the first on, or 'all'. None means 200 for digits, 1000 for CIFAR and
            for sources such as ``folder:PATH``, and all images for arrays.
        subset: Which images the first n are: ``first`` in the order of the data set, ``random``, or
            ``stratified``: each class as often as in the whole set. None means stratified for your own
            images if they are sorted by class (for arrays: if n is a number), else first. Of a source of
            batches only the first n are read, so they are the first.
        subset_seed: Seed of the random and stratified subsets.
        class_map: CSV file with the columns ``folder`` and ``label``, for ``folder:PATH``.
        resize: Length in pixels that the shorter side of image files is resized to, for all models. None
            uses the ``pretrained_cfg`` of each model, and does not resize for a model without one.
        crop: Height and width in pixels of the centre crop after resizing. None means the same as for
            `resize`.
        interpolation: Interpolation of `resize`: ``bilinear`` (default), ``bicubic``, ``nearest``,
            ``lanczos``.
        skip_unreadable: Whether image files that cannot be decoded are left out; each is decoded to find out.
        decode_workers: Processes that decode image files or read a torch Dataset; 0 does it in this one.
            None means one for each CPU, 8 at most, for image files, and 0 for a Dataset: one that keeps a
            file open may read wrong images in several processes.
        protocol: ``final``: each attack on all images; ``worst``: cheap attacks first, each on the images
            that are still correct.
        attack_precision: Precision of the gradients of attacks: ``float32``, ``tf32`` (CUDA only) or
            ``bf16``; the attacked images are classified in float32.
        compile: Whether networks are compiled for attacks, by torch.compile: ``on``, ``off``, or ``auto``,
            which compiles where the estimate says that it saves time. Predictions are computed uncompiled.
        eot: Number of draws of a random model: attacks use the gradient of the mean logits of that many
            draws, and the prediction is the majority vote of as many. None refuses random models.
        round_to_8_bit: Whether the attacked images are also classified rounded to multiples of 1/255, for the
            column ``rounded_accuracy``.
        batch_size: Images per batch; None means 250 on the CPU and 1000 on CUDA.
        device: cpu, cuda, cuda:1; None means the device of the model objects, otherwise CUDA if available.
        seed: Seed of every random draw of the measurement, from 0: attack starts and generated corruptions.
        data_dir: Folder of the data set files; None means $ROBUST_INTERP_DATA, then ~/.cache/robust-interp.
        corruptions_dir: Folder of released images: the CIFAR-10-C / CIFAR-100-C arrays, or ImageNet-C's
            pictures; None generates corruptions.
        cache: Folder in which generated corruptions are kept for later calls, or 'off'; None means
            $ROBUST_INTERP_CACHE, then ~/.cache/robust-interp/corruptions.
        zoo: Folder of more checkpoints, searched before ./model_zoo and the package.
        only_zoo: Whether only that folder is searched; 'all' then means every checkpoint in it.
        checkpoint: Weights file for the single registered name, ``timm:NAME`` or factory in `models`.
        weights_key: Which of several state dicts in a weights file is meant, such as ``state_dict_ema``, or
            the prefix that the names of its tensors share. None means the first of state_dict,
            model_state_dict, model, net, state_dict_ema, model_ema and ema.
        strong: Attack specs for the columns ``strong_<eps>``: the worst of PGD and these attacks. None means
            no such columns.
        strong_n: Number of test images for these columns, from the first on; None means 200, or `n` if
            smaller.
        threads: CPU threads per operation, at least 1; None means $OMP_NUM_THREADS, or the fastest number in
            a short test on the largest model.
        workers: Number of worker processes on this machine to measure in, by Ray (``robust-interp[ray]``);
            None measures in this process. A Ray instance that the calling program has started is used.
        progress: Called after each batch with the share of the work that is done, in [0, 1], and with the
            names of the classifier and of the column, such as ``print``. None means no progress.

    Returns:
        One row per classifier and perturbation, with the columns of results.csv in their order (listed in
        docs/columns.md). ``accuracy`` and its interval, ``ci_low`` and ``ci_high``, are in %. A warning is
        issued for each finding that casts doubt on a number.

    Raises:
        UserError: if the request cannot be measured; the message says why.
        TypeError: for an unknown argument; the message suggests a similar one.
    """
    if progress is not None and not callable(progress):
        raise UserError(f"progress must be a function of a share and a name, such as print, not {progress!r}")
    eps = None if eps is None else eps_in_pixels(eps)
    _check_texts(locals())
    asked: dict[str, Any] = {name: value for name, value in locals().items() if name not in _TRANSLATED}
    if subset is None and whole_number(n) is not None and _batches_in(dataset):
        asked["subset"] = FIRST  # no others are read
    request = Request(
        **_named(models),
        dataset=_given(dataset, n, subset, decode_workers),
        attacks=_specs("attacks", attacks),
        corruptions=_specs("corruptions", corruptions),
        **asked,
    )
    folder = expanded(out) if out is not None else None
    with ExitStack() as stack:
        # Building a model draws random numbers. A model object that another thread measures may be on
        # another device for the moment.
        stack.enter_context(preserved_rng_state())
        for module in request.modules.values():
            stack.enter_context(on_its_device(module))
        stack.enter_context(precision.float32_by_default())
        stack.enter_context(by_default(torch.device("cpu")))
        benchmark = Benchmark(request)
        store = stack.enter_context(Store(folder))
        stack.enter_context(benchmark.in_workers(_workers(workers), store, folder=folder))
        work = benchmark.work(store) if folder or progress else []
        report = benchmark.run(store, Shares(work, cost, progress) if progress else UNWATCHED)
        if folder:
            write(folder, report.results, report.leaderboard)
            command = ["robust_interp.evaluate"]
            environment.write(folder, command, benchmark.machine(store), measured=bool(work))
    for line in report.warnings:
        warnings.warn(line, stacklevel=3)
    return report.results


def _workers(count: object) -> Workers | None:
    number = checked_count("workers", count, 1)
    return None if number is None else Workers(number)


_TRANSLATED = (
    "models",
    "dataset",
    "out",
    "attacks",
    "corruptions",
    "workers",
    "progress",
)  # all other arguments are fields of Request


_PATHS = ("out", "class_map", "data_dir", "corruptions_dir", "cache", "zoo", "checkpoint")


def _check_texts(given: Mapping[str, Any]) -> None:
    """Check the arguments that must be a path or a text.

    Raises:
        UserError: naming the first that is not.
    """
    for name in _PATHS:
        if given[name] is not None and not (isinstance(given[name], str | os.PathLike) and str(given[name])):
            raise UserError(f"{name} must be a path, not {given[name]!r}")
    for name in ("ensemble", "ensemble_attack"):
        if given[name] is not None:
            _specs(name, given[name])


def _specs(name: str, specs: str | Sequence[str]) -> str:
    """Join texts by commas.

    Raises:
        UserError: if `specs` is neither a text nor a list of texts.
    """
    if isinstance(specs, str):
        return specs
    several = list(specs) if isinstance(specs, Iterable) else [specs]
    if not isinstance(specs, Iterable) or not all(isinstance(spec, str) for spec in several):
        raise UserError(f"{name} must be a text or a list of texts, not {specs!r}")
    return ",".join(several or ["none"])


def _named(models: object) -> dict[str, Any]:
    """Return the field of Request that holds the argument `models`, with its value."""
    if isinstance(models, nn.Module):
        return {"modules": {name_of(models): models}}
    if isinstance(models, Mapping) and all(
        isinstance(name, str) and isinstance(model, nn.Module) for name, model in models.items()
    ):
        return {"modules": models} if models else {"models": ()}
    names = (models,) if isinstance(models, str) else models
    if names is not None and not (isinstance(names, Sequence) and all(isinstance(n, str) for n in names)):
        raise UserError(
            f"models must be names, torch modules or a dict of modules, not {type(models).__name__}"
        )
    return {"models": names and tuple(names)}


def _batches_in(dataset: object) -> tuple[Any, Any] | None:
    """Return a source of batches and its number of classes, None if not given; None for anything else."""
    if dataset is None or isinstance(dataset, str):
        return None
    source, *classes = dataset if isinstance(dataset, tuple) and len(dataset) == 2 else (dataset,)
    is_one = data.is_source_of_batches(source) and not (classes and np.ndim(classes[0]))
    return (source, classes[0] if classes else None) if is_one else None


def _given(dataset: object, n: object, subset: object, workers: int | None) -> str | data.Dataset | None:
    """Return the name of a data set as it is, and arrays, loaders or batches as a data set."""
    if dataset is None or isinstance(dataset, str):
        return dataset
    if found := _batches_in(dataset):
        source, classes = found
        count = whole_number(n) if subset in (None, FIRST) else None
        if count is None and n != "all" and not data.has_length(source):
            raise UserError(
                "the data set has no length and may never end: set n, with subset 'first', or n to 'all' to "
                "read all of it"
            )
        return data.from_batches(source, classes, count, workers)
    if not isinstance(dataset, tuple | list) or len(dataset) not in (2, 3):
        raise UserError(
            "dataset must be a name, (images, labels) or (images, labels, classes), a torch Dataset or "
            f"DataLoader, or batches of (images, labels), not {type(dataset).__name__}"
        )
    return data.from_arrays(*dataset)
