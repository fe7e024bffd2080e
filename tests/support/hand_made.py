"""Hand-made cells, for tests that work out every expected value from the patterns: at most 20 samples."""

from dataclasses import replace

import numpy as np

from robust_interp.store import Outcome
from robust_interp.store.cells import Cell, ModelCard, Perturbation, Plan

LABELS = np.arange(20) % 10


def card(model="net", seed=0, recipe="quick", **fields):
    seeds = () if seed is None else (seed,)
    identity = {"weights": f"{model}-{recipe}-{seed}"}
    return ModelCard(model, identity, recipe, "0.20-0.25", seed, seeds, params_m=0.272, **fields)


def ensemble(*members):
    identity = {"ensemble": [member.identity for member in members]}
    seeds = tuple(member.train_seed for member in members)
    return replace(members[0], identity=identity, train_seed=None, seeds=seeds, members=len(members))


def attack(name, eps_255, seed=None, **params):
    seed = 0 if name == "pgd" and seed is None else seed
    return Perturbation("attack", name, f"{name}_{eps_255:g}", {"eps": eps_255 / 255, **params}, seed=seed)


def corruption(name, severity, source="generated@0"):
    return Perturbation("corruption", name, f"{name}_{severity}", {"severity": severity}, source)


def first(right, n=10):
    """The pattern in which the first `right` of n samples are right."""
    return "1" * right + "0" * (n - right)


def run(store, measured, protocol="final", dataset="digits"):
    """Store cells and a finished run. `measured`: (card, perturbation, pattern of right ones, flags)."""
    environment = {"precision": "float32", "torch": "2.9"}
    cells = []
    for classifier, perturbation, pattern, *flags in measured:
        right = np.array([mark == "1" for mark in pattern])
        labels = LABELS[: len(right)]
        attacked = perturbation.kind == "attack"
        cell = Cell(
            classifier,
            dataset,
            f"{dataset}-images",
            perturbation,
            environment | ({"torchattacks": "3.5.1"} if attacked else {}),
        )
        predictions = np.where(right, labels, (labels + 1) % 10).astype(np.int16)
        bits = np.array([int(bit) for bit in (flags[0] if flags else "0" * len(right))], dtype=np.uint8)
        delta = np.full(len(right), perturbation.params["eps"], np.float32) if attacked else None
        store.append(cell.key, 0, Outcome(predictions, bits, delta, 2.0, "cpu"))
        store.put_labels(cell.fingerprint, LABELS)
        cells.append(cell)
    plan = Plan(dataset, len(measured[0][2]), protocol, tuple(cells))
    store.put_plan(plan)
    return plan
