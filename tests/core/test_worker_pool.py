"""Worker processes, by a Ray of two workers that the tests share."""

import subprocess
import sys
import threading

import pytest
from support.executors import Doubling, Waiting, other_versions
from support.prerequisites import needed

from robust_interp.benchmark import workers as measuring
from robust_interp.core import worker_pool
from robust_interp.core.errors import UserError
from robust_interp.core.extras import install
from robust_interp.core.worker_pool import WorkerPool, Workers, cluster

TWO = Workers(2, gpus=0)


def done(tasks, folder, log=lambda line: None, wanted=TWO):
    """What comes of tasks, by number."""
    found, tasks = {}, list(tasks)
    with cluster(wanted) as workers, WorkerPool(workers, Doubling, (str(folder),), log=log) as pool:
        while tasks or pool.is_busy:
            while tasks and pool.has_capacity:
                pool.submit(tasks.pop(0))
            (number, _), result = pool.next_result()
            found[number] = result
    return found


@pytest.mark.slow
def test_tasks_of_lost_workers_are_done_again_three_times_at_most(tmp_path, local_ray):
    lines = []
    tasks = [(number, "") for number in range(8)] + [(8, "dies once"), (9, "always dies"), (10, "")]
    found = done(tasks, tmp_path, lines.append)
    assert {number: found[number] for number in (*range(9), 10)} == {n: 2 * n for n in (*range(9), 10)}
    assert "3 workers were lost in it" in found[9]
    assert "\n" not in found[9]
    assert len(list(tmp_path.glob("8.*"))) == 2
    assert len(list(tmp_path.glob("9.*"))) == 3
    assert len([line for line in lines if "was lost" in line]) == 4
    assert any(line.endswith(": (8, 'dies once')") for line in lines)  # which worker did what


@pytest.mark.slow
def test_tasks_tell_of_themselves_and_can_be_stopped(local_ray):
    reported, lines, one_more = [], [], 3
    with (
        cluster(TWO) as workers,
        WorkerPool(workers, Waiting, (), log=lines.append, news=lambda *news: reported.append(news)) as pool,
    ):
        for number in range(2 + one_more):
            pool.submit(number)
        pool.wait(2)
        pool.stop(seconds=30)
        assert not pool.is_busy
    at_hand = {task for task, _ in reported}
    assert len(at_hand) <= 2
    assert all(news == [task, "waits"] for task, news in reported)
    done = [line for line in lines if not line.startswith("worker ") or " is process " not in line]
    assert len(done) == len(at_hand)  # what was at hand has ended, and nothing else was begun


@pytest.mark.slow
def test_a_users_mistake_in_a_worker_is_one_here(tmp_path, local_ray):
    with pytest.raises(UserError, match=r"^4 is wrong$"):
        done([(4, "is wrong")], tmp_path, wanted=Workers(1, gpus=0))


@pytest.mark.slow
def test_a_worker_with_other_versions_is_refused(tmp_path, local_ray, monkeypatch):
    monkeypatch.setattr(worker_pool, "own_versions", other_versions)
    with pytest.raises(
        UserError, match=r"no worker can be used: .* has robust_interp .*, not robust_interp 0\.0"
    ):
        done([(1, "")], tmp_path)


@pytest.mark.slow
def test_what_cannot_be_sent_is_one_line(local_ray):
    with (
        cluster(TWO) as workers,
        pytest.raises(UserError, match="cannot be sent to another process") as refusal,
    ):
        WorkerPool(workers, Doubling, (threading.Lock(),))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "error", [Exception("The current node timed out\nduring startup."), OSError("no room")]
)
def test_a_ray_that_does_not_start_is_one_line(monkeypatch, error):
    ray = needed("ray")

    def init(*args, **options):
        raise error

    monkeypatch.setattr(ray, "init", init)
    # Another test's Ray may run in this process.
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    reason = str(error).splitlines()[0]
    with (
        pytest.raises(UserError, match=f"^cannot connect to a Ray on this machine: .*{reason}"),
        cluster(Workers(2)),
    ):
        pass


@pytest.mark.slow
def test_more_workers_than_there_is_room_for_are_refused(local_ray):
    with pytest.raises(UserError, match="3 workers need 3 CPUs; the cluster has 2"), cluster(Workers(3)):
        pass


@pytest.mark.slow
def test_without_ray_one_line_names_the_extra(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    options = ["--n", "4", "--attacks", "none", "--corruptions", "none", "--workers", "2", "--quiet", "--out"]
    status, _, errors = command("bench", "--models", "in_resnet20", *options, tmp_path)
    assert status == 1
    assert errors == f"robust-interp: workers need Ray: {install('ray')}\n"


@pytest.mark.slow
def test_without_the_option_nothing_of_ray_is_imported():
    code = "import sys, robust_interp.cli.bench, robust_interp.benchmark.api; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


# Which device the workers use.


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [
        *((None, gpus, gpus) for gpus in (None, 0, 0.5)),
        *(("cpu", None, 0), ("cpu", 0, 0), ("cpu:0", None, 0)),
        *(("cuda", None, None), ("cuda:1", 0.5, 0.5)),
    ],
)
def test_workers_take_gpus_unless_the_cpu_is_asked_for(device, gpus, expected):
    on_gpu = str(device).startswith("cuda")
    assert Workers(2, gpus=gpus).on(device) == Workers(2, gpus=expected, needs_gpu=on_gpu)


@pytest.mark.parametrize(
    ("workers", "device", "gpus_there", "told"),
    [
        *(
            (workers, device, 0, "--device cuda needs a GPU, and there is none in the cluster")
            for workers in (Workers(2), Workers(address="auto"), Workers(2, "auto", gpus=0.5))
            for device in ("cuda", "cuda:1")
        ),
        *(
            (
                workers,
                device,
                gpus,
                "workers on the CPU cannot be counted by GPUs: say how many with --workers",
            )
            for workers, device in (
                (Workers(address="auto"), "cpu"),
                (Workers(address="auto", gpus=0), None),
                (Workers(address="auto", gpus=0), "cpu"),
            )
            for gpus in (0, 2)
        ),
        (
            Workers(address="auto", gpus=3),
            None,
            2,
            "--gpus-per-worker 3 needs more GPUs than the cluster's 2",
        ),
        (Workers(2, "auto", gpus=0, threads=8), None, 0, "2 workers need 16 CPUs; the cluster has 8 and 0"),
        (
            Workers(address="auto"),
            None,
            0,
            "there is no GPU in the cluster to count workers by: say how many",
        ),
    ],
)
def test_workers_without_a_device_in_the_cluster_are_refused(monkeypatch, workers, device, gpus_there, told):
    ray = needed("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0} | ({"GPU": 2.0} if gpus_there else {}))
    with pytest.raises(UserError, match=f"^{told}"), cluster(workers.on(device)):
        pass


@pytest.mark.parametrize(
    ("workers", "device", "gpus_there", "used"),
    [
        (Workers(2), "cuda", 1.0, ("cuda", 2, 0.5)),
        (Workers(3), "cuda", 2.0, ("cuda", 3, 0.5)),  # not 2/3, of which each GPU has room for one
        (Workers(3), "cuda", 4.0, ("cuda", 3, 1.0)),
        (Workers(address="auto"), "cuda", 4.0, ("cuda", 4, 1.0)),
        (Workers(2), "cpu", 4.0, ("cpu", 2, 0)),
        (Workers(2), None, 0.0, ("cpu", 2, 0)),
    ],
)
def test_the_device_and_number_of_workers_are_those_of_the_cluster(
    monkeypatch, workers, device, gpus_there, used
):
    ray = needed("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": gpus_there})
    with cluster(workers.on(device)) as filled:
        assert (filled.device, filled.count, filled.gpus) == used


def test_the_device_of_a_worker_follows_from_its_gpus():
    assert [Workers(2, gpus=gpus).device for gpus in (0, 0.5, 1)] == ["cpu", "cuda", "cuda"]


COMMANDS = ("bench --models in_resnet20", "audit --models in_resnet20")
COMMANDS += ("train --models in_resnet20", "sweep --models in_resnet20")


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize(("device", "gpus"), [("cpu", "1"), ("cpu", "0.5"), ("cuda", "0")])
def test_a_device_that_contradicts_the_gpus_per_worker_is_refused_by_every_command(
    words, device, gpus, command, tmp_path
):
    options = ["--device", device, "--workers", "2", "--gpus-per-worker", gpus, "--quiet", "--out", tmp_path]
    status, _, errors = command(*words.split(), *options)
    assert (status, errors.count("\n")) == (1, 1)
    assert f"--device {device}" in errors
    assert f"--gpus-per-worker is {gpus}" in errors
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS)
def test_with_device_cpu_no_command_asks_for_gpus(words, command, tmp_path, monkeypatch):
    def told(workers):
        raise UserError(f"gpus {workers.gpus}")

    for module in (worker_pool, measuring):
        monkeypatch.setattr(module, "cluster", told)
    options = ["--device", "cpu", "--workers", "2", "--quiet", "--out", tmp_path]
    if not words.startswith("train"):
        options += ["--n", "4"]
    status, _, errors = command(*words.split(), *options)
    assert (status, errors) == (1, "robust-interp: gpus 0\n")
