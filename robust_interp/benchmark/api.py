"""`evaluate`, the benchmark as a function."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from robust_interp import data
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.request import Request
from robust_interp.classifiers.isolation import on_its_device
from robust_interp.core.errors import UserError
from robust_interp.results.folders import write
from robust_interp.store import Store


def evaluate(
    models: str | Sequence[str] | nn.Module | Mapping[str, nn.Module] | None = None,
    dataset: str | tuple = "digits",
    *,
    out: str | os.PathLike | None = None,
    **options,
) -> pd.DataFrame:
    """Measure models and return results.csv as a table, one line a cell.

    Args:
        models: Zoo names, globs or 'all', ``timm:NAME``, ``package.module:factory``, checkpoint folders; a
            torch module, or several by name, that map images to logits.
        dataset: A registered name, or (images, labels) or (images, labels, number of classes): images are
            (N, C, H, W) in [0, 1] or uint8, labels (N,).
        out: Folder of the store and the CSV files; by default nothing is kept.
        options: The other fields of `Request`: mean, std, attacks, eps (in [0, 1] pixels, e.g.
            ``(2/255, 4/255)``), corruptions, seeds, ensembles, ensemble, ensemble_average,
            ensemble_attack, n, protocol, batch_size, device, seed, data_dir, corruptions_dir, zoo,
            checkpoint, strong, strong_n, threads.

    Raises:
        UserError: for anything that cannot be measured as asked.
    """
    for name in ("attacks", "corruptions"):
        if name in options and not isinstance(options[name], str):
            options[name] = ",".join(map(str, options[name] or ["none"]))
    if unexpected := options.keys() - {option.name for option in fields(Request)}:
        raise TypeError(f"evaluate() got an unexpected keyword argument {min(unexpected)!r}")
    request = Request(**_named(models), dataset=_given(dataset), **options)
    folder = Path(out) if out is not None else None
    with ExitStack() as stack:
        for module in request.modules.values():
            stack.enter_context(on_its_device(module))
        # Building a model draws random numbers.
        stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        benchmark = Benchmark(request)
        report = benchmark.run(stack.enter_context(Store(folder)))
    if folder:
        write(folder, report.results, report.leaderboard)
    for line in report.warnings:
        warnings.warn(line, stacklevel=2)
    return report.results


def _named(models) -> dict:
    """The field of a Request that what was given as `models` belongs in."""
    if isinstance(models, nn.Module):
        return {"modules": {type(models).__name__: models}}
    if isinstance(models, Mapping) and all(
        isinstance(name, str) and isinstance(model, nn.Module) for name, model in models.items()
    ):
        if unfit := [name for name in models if not name.isprintable() or not name.strip()]:
            raise UserError(f"a model's name must be one line of text, not {unfit[0]!r}")
        return {"modules": models} if models else {"models": ()}
    names = (models,) if isinstance(models, str) else models
    if names is not None and not (isinstance(names, Sequence) and all(isinstance(n, str) for n in names)):
        raise UserError(
            f"models must be names, torch modules or a dict of modules, not {type(models).__name__}"
        )
    return {"models": names and tuple(names)}


def _given(dataset) -> str | data.Dataset:
    if isinstance(dataset, str):
        return dataset
    if not isinstance(dataset, tuple | list) or len(dataset) not in (2, 3):
        raise UserError("dataset must be a name, (images, labels) or (images, labels, classes)")
    return data.from_arrays(*dataset)
