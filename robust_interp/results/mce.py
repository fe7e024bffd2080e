"""Mean corruption errors of leaderboard rows, absolute and relative to a baseline. Does not import torch.

Source: Hendrycks & Dietterich, *Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations*, ICLR 2019. The baseline there is AlexNet on ImageNet, with the published errors below;
on CIFAR the authors report the plain mean.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from robust_interp.core import statistics
from robust_interp.core.errors import UserError
from robust_interp.core.registry import unknown
from robust_interp.corruptions.names import COMMON
from robust_interp.results.columns import OF_IMAGES_COLUMNS, SOURCE

NO_BASELINE = "none"
ALEXNET = "AlexNet"
# The published errors of AlexNet on ImageNet-C, as shares, each the mean over the severities.
ALEXNET_ERRORS = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
ALIKE = ["n_examples", "protocol", "corruption_source", "source", *OF_IMAGES_COLUMNS]  # must be equal


def with_mce(board: pd.DataFrame, baseline: str = NO_BASELINE) -> pd.DataFrame:
    """Add columns with the mean corruption error over the 15 common corruptions, in percent.

    ``mean_error15`` is the mean error; lower is better. With a baseline, ``mce(BASELINE)`` is the mCE: each
    error is divided by the error of the baseline, then averaged. ``relative_mce(BASELINE)`` is the relative
    mCE: the same for each error minus the clean error. The baseline itself has 100. Both are empty for rows
    that lack one of the corruptions, or that differ from the baseline in n, protocol, source of the
    corruptions, or order or preprocessing of the images. They are also empty if a divisor is 0: an error of
    the baseline for mCE, or its difference to the clean error for relative mCE. Of several rows of the
    baseline, that with the most train seeds counts.

    The baseline ``AlexNet`` means its published errors on ImageNet-C, unless a row has this name. Then
    ``mce(AlexNet)`` is filled for rows with the corruptions of ImageNet-C, and there is no relative mCE.

    Args:
        board: The leaderboard.
        baseline: ``NAME`` for single models, ``NAMExK`` for the ensemble of K, followed by ``@RECIPE`` if
            several rows share the name; ``AlexNet``; or ``none`` to add only the first column.

    Raises:
        UserError: If no row has all corruptions, if the baseline matches none of these rows or several, or if
            it is the published AlexNet and no row is for ImageNet-C.
    """
    names = list(COMMON)
    missing = [name for name in names if name not in board]
    complete = board[board[names].notna().all(axis=1)] if not missing else board[:0]
    if complete.empty:
        lack = f" (missing: {', '.join(missing[:3])}{' ...' * (len(missing) > 3)})" if missing else ""
        raise UserError(
            f"mCE needs all 15 common corruptions: robust-interp bench --corruptions common{lack}"
        )
    errors = 100 - complete[names]
    columns = {"mean_error15": errors.mean(axis=1)}
    if baseline == ALEXNET and not any(_entry(line) == ALEXNET for _, line in complete.iterrows()):
        columns |= _against_alexnet(complete, errors)
    elif baseline != NO_BASELINE:
        columns |= _against(baseline, complete, errors)
    at = len(board.columns) - len(SOURCE)
    parts = [board.iloc[:, :at], pd.DataFrame(columns, index=board.index), board.iloc[:, at:]]
    return pd.concat(parts, axis=1)


def _against(baseline: str, complete: pd.DataFrame, errors: pd.DataFrame) -> dict[str, pd.Series]:
    clean = 100 - complete["clean"] if "clean" in complete else pd.Series(float("nan"), complete.index)
    references = _references(baseline, complete)
    mce, relative = {}, {}
    above, of_all = errors.sub(clean, axis=0), errors.to_numpy()
    for at, (line, circumstances) in enumerate(_circumstances(complete).iterrows()):
        if (reference := references.get(tuple(circumstances))) is not None:
            mce[line] = statistics.mce(of_all[at], of_all[reference])
            relative[line] = statistics.mce(above.to_numpy()[at], above.to_numpy()[reference])
    return {
        f"mce({baseline})": pd.Series(mce, dtype=float),
        f"relative_mce({baseline})": pd.Series(relative, dtype=float),
    }


def _against_alexnet(complete: pd.DataFrame, errors: pd.DataFrame) -> dict[str, pd.Series]:
    published = 100 * np.array([ALEXNET_ERRORS[str(name)] for name in errors])
    of_imagenet = [_is_of_imagenet_c(source) for source in complete["corruption_source"]]
    if not any(of_imagenet):
        raise UserError(
            f"{ALEXNET}'s published errors are those of ImageNet-C, and no row has its corruptions: name a "
            "row of the leaderboard as the baseline, or none"
        )
    found = [
        statistics.mce(row, published) if fits else float("nan")
        for row, fits in zip(errors.to_numpy(), of_imagenet, strict=True)
    ]
    return {f"mce({ALEXNET})": pd.Series(found, complete.index, dtype=float)}


def _is_of_imagenet_c(sources: object) -> bool:
    """Return whether all corrupted images are those of ImageNet-C, or generated with its constants."""
    each = str(sources).split("+")
    return all(re.search(r"\(ImageNet-C\b", source) for source in each)


def _references(baseline: str, complete: pd.DataFrame) -> dict[tuple, int]:
    """Return the position of the baseline's row with the most train seeds, by its `_circumstances`."""
    names = [_entry(line) for _, line in complete.iterrows()]
    name, recipe = (baseline, "") if baseline in names else baseline.rpartition("@")[::2]
    fits = [
        one == name and recipe in ("", of_one) for one, of_one in zip(names, complete["recipe"], strict=True)
    ]
    if not any(fits):
        raise unknown("baseline", baseline, set(names))
    found = complete.assign(place=range(len(complete)), seeds=complete["seeds"].fillna(0))[fits]
    alike = _circumstances(found).assign(recipe=found["recipe"])
    most = found["seeds"].groupby([alike[name] for name in alike]).transform("max")
    found = found[found["seeds"] == most]
    # Rows that differ only in their attacks have the same corrupted images.
    found = found.loc[~_circumstances(found).join(found[[*COMMON, "recipe"]]).duplicated()]
    circumstances = _circumstances(found)
    if circumstances.duplicated().any():
        recipes = sorted({f"{name}@{recipe}" for recipe in found["recipe"]})
        mend = (
            f"choose one of {', '.join(recipes)}"
            if len(recipes) > 1
            else "only one may have the most train seeds"
        )
        raise UserError(f"the baseline {baseline!r} matches several rows: {mend}")
    return {tuple(line): at for at, (_, line) in zip(found["place"], circumstances.iterrows(), strict=True)}


def _circumstances(board: pd.DataFrame) -> pd.DataFrame:
    """Return the columns `ALIKE` of a leaderboard; it has some of them only if a row has a value there."""
    return board.reindex(columns=ALIKE).astype(object).fillna("")


def _entry(line: pd.Series) -> str:
    """Return the name of a row as in `leaderboard compare`."""
    members = line["members"]
    return line["model"] if pd.isna(members) or members == 1 else f"{line['model']}x{members}"
