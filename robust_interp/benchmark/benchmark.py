"""A benchmark, from the request to the report."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from robust_interp.benchmark import cost, measure
from robust_interp.benchmark.compiling import Architecture
from robust_interp.benchmark.pending import group_by_target, missing
from robust_interp.benchmark.plan import join_plans, make_plan
from robust_interp.benchmark.report import Report, compose
from robust_interp.benchmark.request import Request
from robust_interp.benchmark.runner import Runner
from robust_interp.benchmark.settings import checked_compile, load_dataset, resolve_options, threads_of
from robust_interp.benchmark.watch import UNWATCHED, Watch
from robust_interp.benchmark.workers import MeasurementPool, measurement_pool
from robust_interp.classifiers.selection import Selection
from robust_interp.classifiers.target import Target
from robust_interp.core import environment, threads
from robust_interp.core.errors import UserError
from robust_interp.core.threads import Threads
from robust_interp.core.work import ProgressCallback, no_progress
from robust_interp.core.worker_pool import Workers
from robust_interp.store import Store, unfinished
from robust_interp.store.cells import Cell, ModelCard, Plan, digest


class Benchmark:
    """A request with its data read, its model names resolved and its cells listed. Nothing is measured yet.

    Attributes:
        dataset: The data set of the request.
        plan: The cells of all targets; `plan.strong` holds those of the columns ``strong_<eps>``.
        runner: Computes the predictions.

    Args:
        request: The settings of the run.
        progress: Called with the progress of reading the model descriptions, 0 to 1, and the current name.

    Raises:
        UserError: for anything in the request that cannot be measured.
    """

    def __init__(self, request: Request, progress: ProgressCallback = no_progress) -> None:
        self._request = request
        self._pool: MeasurementPool | None = None
        self._asked_threads = threads_of(request)
        self._compile = checked_compile(request.compile)
        self.dataset = load_dataset(request)
        self.runner = Runner.for_request(request, self.dataset)
        asked = request.modules or request.models, resolve_options(request)
        self._selection = Selection(*asked, self.dataset, progress)
        _refuse_two_weights(target.card for target in self.targets)
        self.plan = self._planned(self.targets)
        self._is_loaded = False
        self._threads: Threads | None = None

    @property
    def targets(self) -> list[Target]:
        """The targets to measure; `load` leaves out checkpoints that cannot be."""
        return self._selection.targets

    @property
    def is_incomplete(self) -> bool:
        """Whether a checkpoint that was asked for was left out, since it is broken."""
        return self._selection.is_incomplete

    @contextmanager
    def in_workers(
        self,
        workers: Workers | None,
        store: Store,
        folder: Path | None = None,
        progress: ProgressCallback = no_progress,
    ) -> Iterator[None]:
        """Start worker processes that measure inside this context, unless everything is stored already.

        Every model is loaded here before, as by `load`, so that workers get none that cannot be measured.

        Args:
            workers: Number and place of the workers; None measures in this process.
            store: The store with the results so far.
            folder: Folder of the log of the workers; None writes no log.
            progress: Called with the progress of loading, 0 to 1, and the name of the model.

        Raises:
            UserError: if the workers cannot be started, or in the cases of `load`.
        """
        if workers is None or not self._cells_missing(store):
            yield
            return
        if not self._request.modules:  # objects were checked when they were resolved
            self._load_here(store, progress, torch.device("cpu"))  # leaves the GPUs to the workers
        with measurement_pool(
            workers,
            self._request,
            [self._selection],
            self.runner,
            folder,
            lambda count: self._worth_compiling(store, count),
        ) as self._pool:
            each_of = f"in each of {self._pool.workers.count} workers"
            count = self._pool.workers.threads or 1
            self._threads = Threads(count, threads.available_cpus(), each_of)
            yield
        self._pool = None

    def _planned(self, targets: Iterable[Target]) -> Plan:
        """Return one plan of all targets. Each target is measured on the images in its own preprocessing."""
        request = self._request
        cards: dict[Runner, list[ModelCard]] = {}
        for target in targets:
            cards.setdefault(self.runner.for_dataset(target.dataset), []).append(target.card)
        return join_plans(
            [make_plan(request, view.dataset, view.corruptor, of_view) for view, of_view in cards.items()]
        )

    def load(self, store: Store, progress: ProgressCallback = no_progress) -> None:
        """Load every model that is still to be measured. `run` then starts at once.

        Checkpoints that cannot be measured and are not named are left out of the run, with a warning.

        Args:
            store: The store with the results so far.
            progress: Called with the progress, 0 to 1, and the name of the model.

        Raises:
            UserError: if a model that is named cannot be measured on the device, or none can.
        """
        if self._pool:  # each worker loads the models it needs
            progress(0.0, "in workers")
            self._pool.wait()
            progress(1.0, "")
            return
        self.runner.check_precisions(
            self._cells_missing(store)
        )  # before the models, since loading may take long
        self._load_here(store, progress, self.runner.device)
        self._is_loaded = True

    def _load_here(self, store: Store, progress: ProgressCallback, device: torch.device) -> None:
        """Load every model that is still to be measured, and leave out those that cannot be."""
        self._selection.load(lambda target: target.load(device), progress, partial(self._to_load, store))

    def _to_load(self, store: Store, targets: list[Target]) -> list[Target]:
        """Plan these targets, and return those that are still to be measured, with members of ensembles."""
        self.plan = self._planned(targets)
        needed, cells = set[str](), self._cells_missing(store)
        for card in {id(cell.classifier): cell.classifier for cell in cells}.values():
            needed |= {digest(one) for one in [card.identity, *card.identity.get("ensemble", ())]}
        todo = [target for target in targets if digest(target.card.identity) in needed]
        self.runner.expect(todo, max(part.n for part in self.plan.parts))
        return todo

    def run(self, store: Store, watch: Watch = UNWATCHED) -> Report:
        """Measure all missing cells, chunk by chunk, and score all cells of the plan.

        Args:
            store: The store that results are written to; what it holds already is not measured again.
            watch: Listener for the progress.

        Raises:
            UserError: if a model that is named cannot be measured on the device, or none can; or if one of
                some images is not the one that was measured before.
        """
        if not self._is_loaded:
            self.load(store)
        self._compare_images(store)
        if self._cells_missing(store):
            unfinished.begin(self.plan, store)
        with threads.used(self.choose_threads(store).count):
            self._choose_compiled(store)
            for part in self.plan.parts:
                measure.run(part, self.targets, self.runner, store, watch, self._pool)
        store.put_plan(self.plan)
        unfinished.end(self.plan, store)
        report = self.report(store)
        if self._pool:
            report.warnings.extend(self._pool.notes)
        return report

    def _compare_images(self, store: Store) -> None:
        """Check some images: they must be those of the stored results, which the tables show, too."""
        n = max(part.n for part in self.plan.parts)
        for view in self.runner.views_of(self.targets):
            view.compare_content(store, n)

    def report(self, store: Store) -> Report:
        """Score all cells of the plan, as far as they are stored.

        Raises:
            LookupError: if an attack that skips broken images is not finished.
        """
        return compose(self.plan, self.targets, self.runner, store)

    def missing(self, store: Store) -> list[tuple[Target, list[Cell]]]:
        """Return the cells of each target that are not stored, without those of the strong plan."""
        return group_by_target(missing(self.plan, store), self.targets)

    def work(self, store: Store) -> list[tuple[Cell, int]]:
        """Return the cells to measure, each with the number of its missing images (an upper bound)."""
        return cost.work(self.plan, store, self.runner.batch_size)

    def estimate(self, store: Store, progress: ProgressCallback = no_progress) -> cost.Estimate:
        """Estimate how long `run` takes in this process, from timed passes of each architecture."""
        try:
            return self._estimated(store, progress)
        except UserError:  # a model that is timed cannot be measured; it may be left out
            self.load(store, progress)
            return self._estimated(store, progress)

    def _estimated(self, store: Store, progress: ProgressCallback) -> cost.Estimate:
        with threads.used(self.choose_threads(store).count):
            return cost.estimate(self.plan, self.targets, self.runner, store, self._compile, progress)

    def _choose_compiled(self, store: Store) -> None:
        if self._compile == "auto" and self._pool is None:
            self.runner.compiles = cost.worth_compiling(self.plan, self.targets, self.runner, store)

    def _worth_compiling(self, store: Store, workers: int) -> Container[Architecture]:
        """Return the architectures that each worker compiles; empty unless they pay off on CPU workers."""
        if self._compile != "auto" or self.runner.device.type != "cpu":
            return ()
        return frozenset(cost.worth_compiling(self.plan, self.targets, self.runner, store, workers))

    def machine(self, store: Store) -> dict[str, str | None]:
        """Return the device, the GPU and the threads of this run, for `environment.json`."""
        threads_used = str(self.choose_threads(store))
        device = str(self.runner.device)
        return {"device": device, "gpu": environment.gpu(device), "threads": threads_used}

    def choose_threads(self, store: Store) -> Threads:
        """Return the number of CPU threads for this run, from a short test on the largest model to measure.

        Raises:
            UserError: if that model cannot be measured.
        """
        if self._threads is None:
            todo = [target for target, _ in group_by_target(self._cells_missing(store), self.targets)]
            self._threads = cost.choose_threads(todo, self.runner, self.plan.n, self._asked_threads)
        return self._threads

    def _cells_missing(self, store: Store) -> list[Cell]:
        return [cell for part in self.plan.parts for cell in missing(part, store)]


def _refuse_two_weights(cards: Iterable[ModelCard]) -> None:
    """Refuse two sets of weights of the same model, recipe and train seed, which a row would average.

    Raises:
        UserError: naming the first such model.
    """
    seen: set[tuple] = set()
    for card in cards:
        place = card.model, card.recipe, card.lambda_init, card.train_seed
        if card.train_seed is not None and place in seen:
            raise UserError(
                f"{card.model} {card.recipe} seed {card.train_seed} is named with two sets of weights: "
                "measure each in a run of its own"
            )
        seen.add(place)
