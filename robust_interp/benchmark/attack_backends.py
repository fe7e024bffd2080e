"""Forms of a classifier for attacks: as it is, a copy with BatchNorm folded, or compiled passes of that copy.

All forms compute the same function except for rounding. Predictions always come from the classifier itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from robust_interp import attacks
from robust_interp.attacks.expectation import EOTClassifier
from robust_interp.benchmark.compiling import architecture, can_be_compiled, key, passes_of
from robust_interp.benchmark.runner import Runner
from robust_interp.benchmark.scheduler import Task
from robust_interp.benchmark.watch import Watch
from robust_interp.classifiers.engine import COMPILED, CannotCompile, Pass, compile_model, with_folded_norms
from robust_interp.core.compiler import record_compile_time
from robust_interp.store.cells import CLEAN

WORTH_A_COPY = 5e3  # image passes in a full batch from which on folding BatchNorm pays
COMPARED_ON = 16  # images on which the copy must agree with the model
NEW = 1.0  # seconds: a faster compilation was cached in this process, and its time is not recorded


class AttackBackends:
    """The forms of one classifier for attacks. Each form is created when an attack needs it.

    Which form an attack gets depends on the attack and the batch size, not on what was measured before or on
    how many images are left: a run that was stopped goes on with the same rounding.

    Args:
        attacked: The attacked classifier, in eval mode with frozen parameters, on the runner's device.
        runner: The runner of the run, which says which networks are compiled.
        view: The runner of the images in the classifier's preprocessing.
        watch: Listener for compilations.
    """

    def __init__(self, attacked: nn.Module, runner: Runner, view: Runner, watch: Watch) -> None:
        self._attacked, self._runner, self._view, self._watch = attacked, runner, view, watch
        self._folded: nn.Module | None = None
        self._compiled: dict[frozenset[Pass], nn.Module | None] = {}

    def of(self, task: Task) -> tuple[nn.Module, str]:
        """Return the module to attack in a task, and the name of its engine, empty for Python code."""
        cell = task.cell
        if isinstance(self._attacked, EOTClassifier):
            return self._attacked, ""
        if (self._runner.compiles_all or self._is_chosen(task)) and can_be_compiled(cell):
            passes = frozenset(passes_of(cell.perturbation))
            if passes not in self._compiled:
                self._compiled[passes] = self._compile(task, passes)
            if found := self._compiled[passes]:
                return found, COMPILED
        is_worth_it = attacks.passes(cell.perturbation) * self._runner.batch_size >= WORTH_A_COPY
        return (self._plain() if is_worth_it else self._attacked), ""

    def _is_chosen(self, task: Task) -> bool:
        return architecture(task.cell.classifier) in self._runner.compiles

    def _plain(self) -> nn.Module:
        if self._folded is None:
            images = self._view.pixels(CLEAN, 0, min(COMPARED_ON, self._view.max_batch))
            self._folded = with_folded_norms(self._attacked, images)
        return self._folded

    def _compile(self, task: Task, passes: frozenset[Pass]) -> nn.Module | None:
        """Compile for batches of a constant size; None if that fails, which is noted, or gains nothing."""
        card, images = task.cell.classifier, self._view.pixels(CLEAN, 0, self._view.max_batch)
        with _reporting(self._watch, task):
            try:
                made, seen = compile_model(self._plain(), images, sorted(passes), self._runner.backend)
            except CannotCompile as error:
                self._runner.note_uncompiled(card.model, str(error))
                return None
        if seen.seconds > NEW:
            record_compile_time(key(card, passes, images), seen)
        insists = self._runner.compiles_all
        return made if insists or seen.gain >= 1 else None


@contextmanager
def _reporting(watch: Watch, task: Task) -> Iterator[None]:
    """Report a compilation, which takes long without progress."""
    watch.compiling(task.cell, True)
    yield
    watch.compiling(task.cell, False)
