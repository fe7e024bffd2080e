"""The audit of models: measure them under the attacks that the checks need, and judge the results.

The attacks of a benchmark follow the gradient. If a model's gradient is masked, they fail although the
model is not robust. `Audit` measures each model under attacks that reveal this, and stores the cells in the
same store as a benchmark. `checks` judges the results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

from robust_interp import attacks
from robust_interp.audit import checks
from robust_interp.audit.checks import AuditedModel, Finding, MeasuredAttack
from robust_interp.audit.options import Options
from robust_interp.audit.parts import parts_of, step_of, transferred
from robust_interp.audit.table import lines
from robust_interp.audit.trace import trace
from robust_interp.benchmark.cost import choose_threads
from robust_interp.benchmark.measure import Executor, make_jobs, run_jobs
from robust_interp.benchmark.plan import make_cell, radii
from robust_interp.benchmark.request import Request
from robust_interp.benchmark.runner import Runner
from robust_interp.benchmark.scheduler import Job
from robust_interp.benchmark.settings import (
    checked_seed,
    load_dataset,
    resolve_options,
    sample_count,
    threads_of,
)
from robust_interp.benchmark.watch import UNWATCHED, Watch
from robust_interp.benchmark.workers import MeasurementPool, measurement_pool
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.classifiers.resolve import is_of_the_zoo
from robust_interp.classifiers.selection import Selection
from robust_interp.classifiers.target import Target
from robust_interp.classifiers.validation import LEAST_LOSS, REPEATED_ON, REPEATS, as_probabilities
from robust_interp.core import threads
from robust_interp.core.errors import RandomModelError
from robust_interp.core.registry import matching
from robust_interp.core.threads import Threads
from robust_interp.core.work import ProgressCallback, no_progress
from robust_interp.core.worker_pool import Workers
from robust_interp.results.column_names import parse
from robust_interp.store import NOT_FINITE, ZERO_GRADIENT, Store
from robust_interp.store.cells import CLEAN, Cell, ModelCard, Perturbation, Plan, digest
from robust_interp.store.finished import require_outcome
from robust_interp.store.verdicts import NOT_RUN

DEFAULT_N = 200


class Audit:
    """A request with its models and the settings of their audit; the constructor measures nothing.

    Args:
        request: Models, data set, radii and number of images; its attacks, corruptions and protocol are
            ignored.
        options: Settings of the audit.
        progress: Called with the progress of reading the model descriptions, 0 to 1, and the current name.

    Raises:
        UserError: if the request cannot be measured. A random model is no error; it becomes a finding.
    """

    def __init__(self, request: Request, options: Options, progress: ProgressCallback = no_progress) -> None:
        request = replace(request, models=request.models or ("all",))
        self._request, self.thresholds = request, options.thresholds
        self._asked_threads = threads_of(request)
        self.dataset = load_dataset(request)
        self.n = sample_count(
            min(DEFAULT_N, len(self.dataset)) if request.n is None else request.n, self.dataset
        )
        self.runner = Runner.for_request(request, self.dataset)
        self.parts = parts_of(options, *radii(request, self.dataset), checked_seed(request.seed))
        self.refused: list[AuditedModel] = []
        self._pool: MeasurementPool | None = None
        self._is_loaded = False
        asked = request.modules or request.models, replace(resolve_options(request), check_each=True)
        self._chosen = Selection(*asked, self.dataset, progress, self._refuse)
        self._selections = [self._chosen]
        self.targets = self._sorted(self._chosen.targets)
        for shape in {view.dataset.shape for view in self.runner.views_of(self.targets)}:
            for perturbation in (one for by_eps in self.parts.values() for one in by_eps.values()):
                attacks.check_fits(perturbation, self.dataset.classes, shape)
        self._source = self._named(options.source, request) if options.source else None

    def _named(self, name: str, request: Request) -> Target:
        known = [target for target in self.targets if name in (target.card.model, target.card.label)]
        if known:
            return known[0]
        asked = resolve_options(request)
        seeds = asked.seeds if is_of_the_zoo(name) else None
        options = replace(
            asked, mean=None, std=None, weights_key=None, checkpoint=None, seeds=seeds, check_each=True
        )
        self._selections.append(Selection((name,), options, self.dataset))
        return self._selections[-1].targets[0]

    def _refuse(self, name: str, error: RandomModelError) -> None:
        if all(one.card.model != name for one in self.refused):  # names may be resolved several times
            self.refused.append(AuditedModel(ModelCard(name, {}), [_random(error)]))

    def _sorted(self, targets: Iterable[Target]) -> list[Target]:
        return sorted(targets, key=lambda target: _order(target, self._request))

    def load(self, progress: ProgressCallback = no_progress) -> None:
        """Load every model. Checkpoints that cannot be measured and are not named are left out.

        Args:
            progress: Called with the progress, 0 to 1, and the name of the model.

        Raises:
            UserError: if a model that is named cannot be measured, or none can.
        """
        self._chosen.load(self._load, progress, self._sorted)
        self.targets = self._sorted(self._chosen.targets)
        if self._source:
            self._load(self._source)
        self._is_loaded = True

    def _load(self, target: Target) -> None:
        """Load a target; a random one is not refused here, since that is a finding."""
        with suppress(RandomModelError):
            self.runner.load(target)

    @property
    def warnings(self) -> list[str]:
        """The remarks on the models, and the notes of the runner."""
        remarks = (line for target in self.targets for line in target.remarks)
        return list(dict.fromkeys([*remarks, *self.runner.notes, *(self._pool.notes if self._pool else ())]))

    @property
    def is_incomplete(self) -> bool:
        """Whether a checkpoint that was asked for was left out, since it is broken."""
        return self._chosen.is_incomplete

    def _on(self, target: Target) -> Runner:
        """Return the runner for the images in the form that a target takes."""
        return self.runner.for_dataset(target.dataset)

    def _other(self, target: Target) -> Target | None:
        """Return the model that attacks on a target are transferred from; None if there is none.

        It is the model named by the options, else the first other model of the run. It must take images of
        the same form as the target.
        """
        named = [self._source] if self._source else self.targets
        choices = [one for one in named if self._on(one) is self._on(target)]
        return next((one for one in choices if one.card.identity != target.card.identity), None)

    def _why_no_transfer(self, target: Target) -> str:
        """Return why attacks are not transferred to a target, and what to do."""
        if other := self._other(target):
            return f"{other.card.label} lets no gradient through: give another model with --source"
        if self._source is None:
            others = [one for one in self.targets if one.card.identity != target.card.identity]
            fitting = "no other model of the run takes images of its preprocessing" if others else ""
            return f"{fitting or 'there is no other model to transfer attacks from'}: give one with --source"
        is_alike = self._on(self._source) is self._on(target)
        why = "is the audited model itself" if is_alike else "takes images of another preprocessing"
        return f"the model of --source {why}: give another one"

    def _cells(self, target: Target) -> dict[str, dict[float, Cell]]:
        """Return the cells of a target by part and by radius in units of 1/255."""
        parts = {"clean": {0.0: CLEAN}} | self.parts
        if other := self._other(target):
            parts["transfer"] = {eps: transferred(row, eps, other) for eps, row in self.parts["row"].items()}
        return {
            part: {eps: make_cell(target.card, self._on(target).dataset, one) for eps, one in by_eps.items()}
            for part, by_eps in parts.items()
        }

    def work(self, store: Store) -> list[tuple[Cell, int]]:
        """Return the missing cells, each with its number of missing images; loss traces are not included.

        Args:
            store: The store with the results so far.
        """
        return [
            (cell, left)
            for target in self.targets
            for cell in _flat(self._cells(target))
            if (left := self.n - store.covered(cell.key)) > 0
        ]

    @contextmanager
    def in_workers(
        self, workers: Workers | None, folder: Path | None = None
    ) -> Iterator[MeasurementPool | None]:
        """Start worker processes for `run` inside this context; every model is loaded here before.

        Args:
            workers: Number and place of the workers; None starts no workers.
            folder: Folder of the log of the workers; None writes no log.

        Raises:
            UserError: if the workers cannot be started, or in the cases of `load`.
        """
        if workers is None:
            yield None
            return
        if not self._is_loaded:
            self.load()
        pool = measurement_pool(workers, self._request, self._selections, self.runner, folder)
        with pool as self._pool:
            yield self._pool

    def run(
        self, store: Store, watch: Watch = UNWATCHED, executor: Executor | None = None
    ) -> list[AuditedModel]:
        """Measure the missing cells, judge every model, and store the verdicts.

        Args:
            store: The store of the cells and verdicts.
            watch: Listener for the progress.
            executor: The workers that measure; None measures in this process. Loss traces are always
                computed in this process.

        Returns:
            Each model with its findings; random models that were found earlier and not measured come first.

        Raises:
            UserError: if a model that is named cannot be measured on the device, or none can; or if one of
                some images is not the one that was measured before.
        """
        if not self._is_loaded:
            self.load()
        self.runner.expect(self.targets, self.n)
        for view in self.runner.views_of(self.targets):
            view.compare_content(store, self.n)
        with threads.used(self.chosen_threads.count if self.chosen_threads else 1):
            if executor:
                self._measure_all(store, watch, executor)
            return [*self.refused, *self._audited(store, watch)]

    def _measure_all(self, store: Store, watch: Watch, executor: Executor) -> None:
        """Measure the cells of all models together in the workers, before `_audited` judges each model."""
        jobs: list[Job] = []
        targets: dict[str, Target] = {}
        for target in self.targets:
            try:
                if self._lets_gradients_through(self.runner.load(target), self._on(target)):
                    of_target, needed, _ = self._jobs(target)
                    jobs += of_target
                    targets |= {one.key: one for one in needed}
            except RandomModelError:  # `_audit` reports it as a finding
                continue
        run_jobs(jobs, list(targets.values()), self.runner, store, watch, executor)

    @cached_property
    def chosen_threads(self) -> Threads | None:
        """The number of CPU threads that suits the models; None if there is no model to measure."""
        return (
            choose_threads(self.targets, self.runner, self.n, self._asked_threads) if self.targets else None
        )

    def _audited(self, store: Store, watch: Watch) -> Iterator[AuditedModel]:
        for target in self.targets:
            one = AuditedModel(target.card, self._audit(target, store, watch))
            text = json.dumps(list(lines(one, self.dataset.name)))
            classifier = digest(target.card.identity)
            conclusion = str(replace(one.conclusion, eps=()))
            store.put_audit(classifier, self._on(target).dataset.fingerprint, conclusion, text)
            yield one

    def _audit(self, target: Target, store: Store, watch: Watch) -> list[Finding]:
        try:
            classifier = self.runner.load(target)
        except RandomModelError as error:
            return [_random(error)]
        count = min(REPEATED_ON, len(self.dataset))
        found = [checks.deterministic(count, REPEATS + 1)]
        runner = self._on(target)
        if not self._lets_gradients_through(classifier, runner):
            return [*found, checks.no_gradient(self.n, self.thresholds)]
        measured = self._measured(target, store, watch)
        losses = {eps: trace(row, classifier, runner, self.n) for eps, row in self.parts["trace"].items()}
        found += self._judged(measured, losses, self._as_probabilities(classifier, runner))
        if "transfer" not in measured:
            found.append(Finding("transfer", NOT_RUN, self._why_no_transfer(target), self.n))
        return found

    def _measured(self, target: Target, store: Store, watch: Watch) -> dict[str, dict[float, MeasuredAttack]]:
        """Measure a target and return the results by part and by radius in units of 1/255."""
        jobs, targets, cells = self._jobs(target)
        run_jobs(jobs, targets, self.runner, store, watch)
        return {
            part: {eps: self._standing(cell, eps, store) for eps, cell in by_eps.items()}
            for part, by_eps in cells.items()
        }

    def _jobs(self, target: Target) -> tuple[list[Job], list[Target], dict[str, dict[float, Cell]]]:
        """Return the jobs of a target, the targets that the jobs need, and the cells by part and radius."""
        cells = self._cells(target)
        transfer = cells.pop("transfer", {})
        plan = Plan(self.dataset.name, self.n, "final", tuple(_flat(cells)))
        jobs, targets = make_jobs(plan, plan.cells, target, self.runner), [target]
        other = self._other(target)
        if other and self._lets_gradients_through(self.runner.load(other), self._on(target)):
            cells["transfer"] = transfer
            jobs += make_jobs(plan, transfer.values(), target, self.runner, source=other)
            targets.append(other)
        return jobs, targets, cells

    @torch.no_grad()
    def _as_probabilities(self, classifier: nn.Module, runner: Runner) -> str:
        with measurement_mode(classifier):
            images = runner.pixels(CLEAN, 0, min(REPEATED_ON, self.n))
            return as_probabilities(classifier(images))

    def _lets_gradients_through(self, classifier: nn.Module, runner: Runner) -> bool:
        with measurement_mode(classifier):
            images = runner.pixels(CLEAN, 0, 1).requires_grad_()
            return classifier(images.clone()).requires_grad

    def _standing(self, cell: Cell, eps_255: float, store: Store) -> MeasuredAttack:
        outcome = require_outcome(cell, store, self.n)
        stands = outcome.predictions == self.dataset.labels[: self.n]
        name = parse(cell.perturbation.column).series
        blind = outcome.flags & (ZERO_GRADIENT | NOT_FINITE) != 0
        return MeasuredAttack(name, eps_255, stands, blind)

    def _judged(
        self,
        measured: dict[str, dict[float, MeasuredAttack]],
        losses: dict[float, np.ndarray],
        probabilities: str,
    ) -> list[Finding]:
        found = [_step_size(row) for row in self.parts["row"].values()]
        for eps, row in measured["row"].items():
            at = {part: by_eps[eps] for part, by_eps in measured.items() if eps in by_eps}
            found.append(checks.gradients(row, self.thresholds))
            found.append(
                checks.logits(row.name, eps, losses[eps][0] < LEAST_LOSS, probabilities, self.thresholds)
            )
            steps = self.parts["trace"][eps].integer("steps")
            found += checks.loss(row.name, eps, losses[eps], self.thresholds, steps)
            found += checks.comparisons(at, self.thresholds)
        rows, large = measured["row"].values(), measured["large_eps"].values()
        found += checks.monotone([*measured["clean"].values(), *rows, *large])
        found += [checks.large_eps(one, self.thresholds) for one in large]
        if not measured["restarts"]:
            reason = f"{next(iter(rows)).name} has no random start"
            found.append(Finding("restarts", NOT_RUN, reason, len(next(iter(rows)).stands)))
        return found


def _order(target: Target, request: Request) -> int:
    """Return the index of the first requested name that matches a model.

    Models that match no requested name come last.
    """
    called = [name for name in (target.card.model, target.checkpoint) if name]
    names = [name.partition("@")[0] for name in request.models or ()]
    return next((at for at, name in enumerate(names) if matching(name, called)), len(names))


def _step_size(row: Perturbation) -> Finding:
    warning, steps = attacks.step_warning(row), row.integer("steps")
    return checks.step_size(row.column, row.eps_255, 255 * step_of(row), steps, warning)


def _random(error: RandomModelError) -> Finding:
    return checks.deterministic(REPEATED_ON, REPEATS + 1, str(error))


def _flat(cells: dict[str, dict[float, Cell]]) -> list[Cell]:
    """Return each cell once, even if several parts use it."""
    return list({cell.key: cell for by_eps in cells.values() for cell in by_eps.values()}.values())
