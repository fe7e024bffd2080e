"""Which form of a classifier is attacked: it depends on nothing that an interrupted run changes."""

from dataclasses import replace

import pytest
import torch
from support.attacked import perturbation
from support.hand_made import card

from robust_interp import data
from robust_interp.benchmark.attack_backends import AttackBackends
from robust_interp.benchmark.runner import Runner
from robust_interp.benchmark.scheduler import Task
from robust_interp.benchmark.watch import UNWATCHED
from robust_interp.corruptions import Corruptor
from robust_interp.store.cells import Cell


@pytest.mark.parametrize("n", [8, None])
def test_the_same_form_is_attacked_in_whatever_parts_and_order(digits_classifier, n):
    """In batches of 256, PGD (20 steps) is worth a folded copy and FGSM (1 step) is not."""
    dataset = data.load("digits")
    runner = Runner(dataset, Corruptor(dataset, 0), torch.device("cpu"), 256, n)
    cell = Cell(card(), "digits", dataset.fingerprint, perturbation("pgd(steps=20)"), {})
    short = replace(cell, perturbation=perturbation("fgsm"))

    def attacked(*tasks):
        backends = AttackBackends(digits_classifier, runner, runner, UNWATCHED)
        return [backends.of(Task("", *task))[0] is digits_classifier for task in tasks]

    whole, tail, one = (cell, 0, 256), (cell, 256, 266), (cell, 0, 1)
    assert attacked(whole, tail, one) == attacked(tail, one, whole) == [False] * 3
    assert attacked((short, 0, 256), whole, (short, 0, 256)) == [True, False, True]
