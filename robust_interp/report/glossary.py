"""What each column means, in a sentence: where the column's header leads to."""

from __future__ import annotations

import re
from collections.abc import Collection

_ENTRY = {
    "rank": "Place by PGD, or what the protocol ranks by, at the middle one of the measured radii, among "
    "entries of the same protocol on the same images, under worst also of the same attacks: each such group "
    "has a first place. Equal accuracies share a rank; what was not measured here has none.",
    "model": "Architecture, by its timm name. ×k marks the ensemble of k train seeds, attacked as one "
    "classifier.",
    "recipe": "What the checkpoint was trained with.",
    "lambda_init": "Interval that act(λ), by which the skip connection is damped, started in.",
    "seeds": "Train seeds: how many networks the numbers are averaged over, or the ensemble is made of.",
    "members": "Networks whose outputs are averaged; 1 is a single model.",
    "params_m": "Parameters in millions.",
    "n_examples": "Test images that each accuracy is a share of.",
    "protocol": "final: accuracy of the attack's last iterate over all n images. worst: an image counts only "
    "if it is right when clean as well.",
    "source": "measured: here, from stored predictions. Anything else is quoted.",
    "corruption_source": "released: the published CIFAR-C arrays. generated@s: made with CIFAR-C's "
    "parameters and seed s.",
    "audit": "Whether robust accuracy can be believed: pass, open (so few images do not tell), warn or fail, "
    "the worst of the checks and train seeds; partial if all passed that were run and some were left out. "
    "n: on how many images; checks: how many of them were run, if not all.",
    "strong_n": "Images that the strong columns are a share of.",
    "agreement": "Ensembles: on how many of the clean images, in %, all members predict the same class.",
    "improvement": "Ensembles: accuracy less the mean of its members', in percentage points, in the column "
    "that ranks.",
}
_MEASURED = {
    "clean": "Accuracy on the images as they are.",
    "noise": "Mean accuracy under impulse, speckle, Gaussian and shot noise at their five severities.",
    "common15": "Mean accuracy under the fifteen common corruptions of CIFAR-C at their five severities.",
    "all19": "Mean accuracy under all nineteen corruptions of CIFAR-C at their five severities.",
    "fgsm": "Accuracy under the fast gradient sign method: one step of size ε.",
    "ifgsm": "Accuracy under iterated FGSM: sign steps of size α, kept within ε of the image.",
    "pgd": "Accuracy under projected gradient descent: as iterated FGSM, but from a random start within ε.",
    "worst": "Share of images that are right when clean and under every attack at that ε.",
    "strong": "Share of images that stand under the row's PGD and under stronger attacks, counted on "
    "strong_n images.",
}


def definition(column: str, corruptions: Collection[str]) -> str:
    """A sentence or two on a column of the leaderboard; `corruptions` are the names of those measured."""
    if column in _ENTRY:
        return _ENTRY[column]
    name, radius = split(column)
    if column in corruptions:
        return "Mean accuracy under this corruption at its five severities."
    if name in corruptions:
        return "Accuracy under this corruption; the number is the severity, 1 to 5."
    unit = " The number is ε in units of 1/255." if radius else ""
    of_norm = re.fullmatch(r"(.+)_(l\d)", name)
    if of_norm and of_norm[1] in _MEASURED:
        return f"{_MEASURED[of_norm[1]]} Here ε is an {of_norm[2].upper()} radius, in pixels of [0, 1]."
    return _MEASURED.get(name, "Accuracy under this attack, with the parameters told below.") + unit


def split(column: str) -> tuple[str, str]:
    """``pgd_0.5`` is pgd and 0.5; a column without a number has an empty second part."""
    found = re.fullmatch(r"(.+)_(\d+(?:\.\d+)?)", column)
    return (found[1], found[2]) if found else (column, "")


def anchor(column: str) -> str:
    """Where on the page a column is defined: radii of one attack share a definition."""
    return "def-" + re.sub(r"[^A-Za-z0-9_-]", "-", split(column)[0])
