"""Hand-made cells, for tests that work out every expected value from the patterns: at most 20 samples."""

from dataclasses import replace

import numpy as np

from robust_interp.store import Outcome, Store
from robust_interp.store.cells import CLEAN, Cell, ModelCard, Perturbation, Plan

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


def run(store, lines, protocol="final", dataset="digits"):
    """Store cells and a finished run. `lines`: (card, perturbation, pattern of right ones, flags)."""
    plan = measured(store, lines, protocol, dataset)
    store.put_plan(plan)
    return plan


def measured(store, lines, protocol="final", dataset="digits"):
    """Store cells as `run` does, but no finished run: the plan of one."""
    environment = {"precision": "float32", "torch": "2.9"}
    cells = []
    for classifier, perturbation, pattern, *flags in lines:
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
    return Plan(dataset, len(lines[0][2]), protocol, tuple(cells))


def results_beyond_ascii(folder):
    """A results folder whose tables hold a ± and a model's name beyond ASCII."""
    with Store(folder) as store:
        lines = [(card("λ-net", seed), CLEAN, first(7 + seed)) for seed in (0, 1)]
        lines += [(card("λ-net", seed), attack("pgd", 2), first(4 + seed)) for seed in (0, 1)]
        lines += [(card("net", 0), CLEAN, first(9)), (card("net", 0), attack("pgd", 2), first(3))]
        run(store, lines)
    return folder
