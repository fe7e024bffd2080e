"""The number of threads and how they wait: limits that are made up here, and a step whose speed is known."""

import os
import subprocess
import sys
import types

import pytest
import torch

from robust_interp.core import threads
from robust_interp.core.errors import UserError


def test_waiting_is_passive_unless_the_user_says_how():
    environ = {}
    threads.wait_passively(environ)
    assert environ == {"OMP_WAIT_POLICY": "PASSIVE"}


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_set_wins(name):
    environ = {name: "whatever"}
    threads.wait_passively(environ)
    assert environ == {name: "whatever"}


def test_the_command_asks_for_it_before_torch_is_loaded(command, monkeypatch):
    for name in threads.WAITING:
        monkeypatch.delenv(name, raising=False)
    command("--version")
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def of_eight(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),  # half a CPU
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense"}, 8),
        # the limit of a slice above one's own group
        (
            {
                "proc/self/cgroup": "0::/user.slice/job\n",
                "sys/fs/cgroup/user.slice/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/user.slice/job/cpu.max": "max 100000\n",
            },
            2,
        ),
        # the first version of cgroups
        (
            {
                "proc/self/cgroup": "5:memory:/\n4:cpu,cpuacct:/docker/a\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
    ],
)
def test_cpus_are_those_of_the_quota(tmp_path, of_eight, files, cpus):
    for path, text in files.items():
        write(tmp_path, path, text)
    assert threads.available_cpus({}, tmp_path) == cpus


def test_cpus_are_those_of_the_affinity_and_of_slurm(tmp_path, of_eight, monkeypatch):
    assert threads.available_cpus({"SLURM_CPUS_PER_TASK": "5"}, tmp_path) == 5
    assert threads.available_cpus({"SLURM_CPUS_PER_TASK": "many"}, tmp_path) == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert threads.available_cpus({"SLURM_CPUS_PER_TASK": "5"}, tmp_path) == 1


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [
        ({1: 0.04, 2: 0.02, 4: 0.01}, 4),
        ({1: 0.01, 2: 0.02, 4: 0.04}, 1),
        ({1: 0.02, 2: 0.01, 4: 0.0098}, 2),  # four gain too little over two
        ({1: 0.01, 2: 0.0098, 4: 0.0096}, 1),
    ],
)
def test_the_fastest_number_is_taken_and_of_equals_the_smallest(monkeypatch, seconds, fastest):
    before, now = torch.get_num_threads(), 0.0

    def step():
        nonlocal now
        now += seconds[torch.get_num_threads()]

    monkeypatch.setattr(threads, "time", types.SimpleNamespace(perf_counter=lambda: now))
    with threads.used(4):  # the first call, which sets things up, is made before any is tried
        assert threads.fastest(step, 4) == fastest
    assert torch.get_num_threads() == before


@pytest.mark.slow
@pytest.mark.parametrize("first", ["threads.use(1); import torch", "import torch; threads.use(1)"])
def test_a_number_is_used_whenever_torch_is_imported(first):
    code = f"from robust_interp.core import threads; {first}; print(torch.get_num_threads())"
    environ = os.environ | {"OMP_NUM_THREADS": "2"}
    argv = [sys.executable, "-c", code]
    found = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True)
    assert found.stdout == "1\n"


@pytest.fixture
def idle_settings(monkeypatch):
    for name in threads.COUNTING:
        monkeypatch.delenv(name, raising=False)


def never():
    raise AssertionError("nothing is to be tried out")


def test_what_is_asked_for_is_used(idle_settings, monkeypatch):
    assert threads.choose(3, never).count == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads.choose(2, never).count == 2


def test_omp_num_threads_wins_over_a_test(idle_settings, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    chosen = threads.choose(None, never)
    assert chosen.count == torch.get_num_threads()
    assert "OMP_NUM_THREADS" in str(chosen)


def test_no_more_than_the_cpus_there_are(idle_settings, monkeypatch):
    monkeypatch.setattr(threads, "available_cpus", lambda: 1)
    with threads.used(8):
        assert threads.choose(None, never).count == 1


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2", 10**9])
def test_no_number_of_threads_is_refused(count):
    with pytest.raises(UserError, match="threads must be a whole number"):
        threads.choose(count, None)


def test_threads_are_put_back():
    before = torch.get_num_threads()
    inside = []

    def fail():
        with threads.used(before + 1):
            inside.append(torch.get_num_threads())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert inside == [before + 1]
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_bench_measures_on_the_threads_asked_for_and_says_so(command, tiny_zoo, tmp_path, monkeypatch):
    from robust_interp.benchmark.runner import Runner

    seen, outcome = [], Runner.outcome

    def watched(*arguments, **options):
        seen.append(torch.get_num_threads())
        return outcome(*arguments, **options)

    monkeypatch.setattr(Runner, "outcome", watched)
    before = torch.get_num_threads()
    chosen = ["--zoo", tiny_zoo, "--models", "preact_resnet14", "--n", "5", "--attacks", "none"]
    chosen += ["--corruptions", "none", "--threads", before + 1, "--out", tmp_path]
    status, _, err = command("bench", *chosen)
    assert (status, seen) == (0, [before + 1])
    assert f"{before + 1} threads of" in err
    assert "as requested" in err
    assert torch.get_num_threads() == before


def test_a_number_of_threads_that_is_none_is_one_line(command):
    status, _, err = command("bench", "--threads", "0")
    assert status == 2
    assert err.count("\n") == 1
