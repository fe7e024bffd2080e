"""Tasks that are done in any order, by several at once, give what one process gives from first to last."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support import one_pixel
from support.executors import Several
from support.one_pixel import Net

from robust_interp.benchmark import scheduler as scheduling
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.measure import LocalWorker, make_jobs, run, run_jobs
from robust_interp.benchmark.pending import prerequisites
from robust_interp.benchmark.request import Request
from robust_interp.benchmark.scheduler import Job, Scheduler
from robust_interp.core.errors import UserError
from robust_interp.data import from_arrays
from robust_interp.store import Store

N, BATCH = 24, 5
CHUNKS = 5  # 5 + 5 + 5 + 5 + 4


def benchmark(protocol="final", models=("a", "b"), attacks="fgsm,pgd(steps=2)"):
    pixels = np.linspace(0.05, 0.95, N, dtype=np.float32).reshape(-1, 1, 1, 1)
    dataset = from_arrays(pixels, (pixels[:, 0, 0, 0] < 0.5).astype(int))
    modules = {name: Net() for name in models}
    for number, module in enumerate(modules.values()):
        module.scale.data += number  # other weights: other cells
    request = Request(
        modules=modules,
        dataset=dataset,
        attacks=attacks,
        corruptions="none",
        eps=(0.1, 0.2),
        batch_size=BATCH,
        protocol=protocol,
    )
    return Benchmark(request)


def stored(benchmark, store):
    """All that is stored but seconds and device."""
    found = {}
    for cell in benchmark.plan.cells:
        outcome = store.read(cell.key, N)
        found[cell.key] = outcome and [
            outcome.predictions.tolist(),
            outcome.flags.tolist(),
            None if outcome.deltas is None else outcome.deltas.tolist(),
        ]
    return found


def measured(benchmark, store, **options):
    with LocalWorker(benchmark.runner, {target.key: target for target in benchmark.targets}) as worker:
        executor = Several(worker, **options)
        run(benchmark.plan, benchmark.targets, benchmark.runner, store, executor=executor)
    return executor


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["final", "worst"])
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_arrival_does_not_matter(protocol, seed):
    one = benchmark(protocol)
    with Store(None) as serial, Store(None) as shuffled:
        run(one.plan, one.targets, one.runner, serial)
        executor = measured(one, shuffled, seed=seed)
        assert None not in stored(one, serial).values()
        assert stored(one, shuffled) == stored(one, serial)
        starts = [task.start for task in executor.done if task.cell is one.plan.cells[0]]
    assert sorted(starts) == [0, 5, 10, 15, 20]


def test_worst_waits_for_what_a_cell_follows_and_fills_all_workers_meanwhile():
    one = benchmark("worst", models=("a", "b", "c"), attacks="fgsm")
    order = {cell.key: number for number, cell in enumerate(one.plan.cells)}
    with Store(None) as store:
        executor = measured(one, store, seed=0, size=8)
    first = [order[task.cell.key] for task in executor.done[:CHUNKS]]
    assert len({one.plan.cells[number].classifier.model for number in first}) > 1
    for cell in one.plan.cells:
        tasks = [at for at, task in enumerate(executor.done) if task.cell is cell]
        clean = [
            at
            for at, task in enumerate(executor.done)
            if task.cell.classifier is cell.classifier and task.cell.perturbation.kind == "clean"
        ]
        assert cell.perturbation.kind == "clean" or max(clean) < min(tasks)


def test_what_cannot_be_done_is_named_at_the_end_and_the_rest_is_done():
    one = benchmark("worst", attacks="fgsm")
    bad = one.plan.cells[0]
    with Store(None) as store:
        with pytest.raises(UserError, match="it was lost"):
            measured(one, store, seed=1, fails=lambda task: task.cell is bad and task.start == 5)
        found = stored(one, store)
    of_a = {cell.key for cell in one.plan.cells if cell.classifier is bad.classifier}
    assert {key for key, outcome in found.items() if outcome is None} == of_a


@pytest.mark.parametrize("targets", ["aaa", "abb", "aab", "aba", "abc"])
def test_what_follows_a_lost_cell_is_given_up_whichever_targets_share_it(targets):
    one = benchmark("worst", models=("a",), attacks="fgsm,pgd(steps=2)")
    cells = [cell for cell in one.plan.cells if cell.perturbation.ball in (None, ("Linf", 25.5))]
    assert [cell.perturbation.name for cell in cells] == ["clean", "fgsm", "pgd"]
    jobs = [
        Job(one.plan, cell, N, target, prerequisites=prerequisites(one.plan, cell))
        for cell, target in zip(cells, targets, strict=True)
    ]
    with Store(None) as store:
        scheduler = Scheduler(jobs, store, one.dataset.labels, one.runner.task_end)
        task = scheduler.next()
        assert task.cell is cells[0]
        assert not scheduler.is_done
        scheduler.fail(task, "it was lost")
        assert scheduler.next() is None
        assert scheduler.is_done  # else a run waits for ever
        assert scheduler.failures == ["it was lost"]
        assert store.claim(task.cell.key, N, lambda at: N) == (0, N)  # by another process, say


def test_two_processes_on_one_store_do_half_of_the_tasks_each(tmp_path, monkeypatch):
    monkeypatch.setattr(scheduling, "PAUSE", 0.0)
    one = benchmark("worst")
    (targets, runner) = one.targets, one.runner
    cells = {target.key: list(one.plan.cells_of(target.card)) for target in targets}
    jobs = [
        [job for one_of in targets for job in make_jobs(one.plan, cells[one_of.key], one_of, runner)]
        for _ in "ab"
    ]
    done, images = [0, 0], [0, 0]
    with Store(tmp_path) as a, Store(tmp_path) as b, Store(None) as serial:
        stores = (a, b)
        a.put_labels(one.dataset.fingerprint, one.dataset.labels)
        both = [
            Scheduler(of, store, one.dataset.labels, runner.task_end)
            for of, store in zip(jobs, stores, strict=True)
        ]
        with LocalWorker(runner, {target.key: target for target in targets}) as worker:
            while not all(scheduler.is_done for scheduler in both):
                at_hand = [scheduler.next() for scheduler in both]  # both are at work at the same time
                for which, task in enumerate(at_hand):
                    if task:
                        stores[which].append(task.cell.key, task.start, worker.measure(task))
                        both[which].finish(task)
                        done[which] += 1
                        images[which] += task.attacked
        run(one.plan, targets, runner, serial)
        assert stored(one, a) == stored(one, serial)
        once = measured(one, Store(None), seed=0, size=1)
    assert sum(done) == len(once.done)  # nothing twice
    assert abs(done[0] - done[1]) <= 0.2 * sum(done)
    others = [sum(samples for _, samples in scheduler.elsewhere) for scheduler in both]
    assert others == images[::-1]
    for scheduler in both:
        assert sum(images) + sum(samples for _, samples in scheduler.skipped) == N * len(one.plan.cells)


def test_a_cell_that_is_finished_has_no_task():
    one = benchmark(attacks="none")
    with Store(None) as store:
        run(one.plan, one.targets, one.runner, store)
        target = one.targets[0]
        jobs = make_jobs(one.plan, one.plan.cells_of(target.card), target, one.runner)
        scheduler = Scheduler(jobs, store, one.dataset.labels, one.runner.task_end)
        assert scheduler.next() is None
        assert scheduler.is_done
        run_jobs(jobs, [target], one.runner, store)


@pytest.mark.slow
def test_a_run_goes_on_with_another_batch_size_and_on_another_device(tmp_path, monkeypatch):
    options = {"attacks": "pgd,square(queries=5)", "protocol": "worst", "device": "cpu"}
    whole = one_pixel.evaluate(Net(), batch_size=4, out=tmp_path / "whole", **options)
    append = Store.append

    def on_cuda(store, cell, start, outcome):
        append(store, cell, start, replace(outcome, device="cuda"))

    with monkeypatch.context() as patch:
        patch.setattr(Store, "append", on_cuda)
        one_pixel.evaluate(Net(), n=7, batch_size=3, out=tmp_path / "parts", **options)
    parts = one_pixel.evaluate(Net(), batch_size=250, out=tmp_path / "parts", **options)
    assert set(whole["device"].dropna()) == {"cpu"}
    assert set(parts["device"].dropna()) == {"cpu+cuda"}
    pd.testing.assert_frame_equal(
        *(one_pixel.measured(table).drop(columns="device") for table in (parts, whole))
    )
