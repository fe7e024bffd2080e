"""Measuring in worker processes gives, byte for byte, what one process gives; whatever is killed."""

import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from support.one_pixel import Net, evaluate

import robust_interp
from robust_interp import plugins
from robust_interp.cli.main import main
from robust_interp.core.errors import UserError

MEASURED = "--corruptions gaussian_noise(severity=3) --eps 16 --n 40 --batch-size 8"

# An attack that kills the process that makes it, once, if that is a worker.
KILLER = """
import os, signal, sys
from robust_interp import plugins

@plugins.attack()
def killer(model, images, labels, *, eps):
    flag = {flag!r}
    if "ray" in sys.argv[0] and not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return (images + eps * (model(images).argmax(1) % 2 * 2 - 1).view(-1, 1, 1, 1)).clamp(0, 1)
"""


def bench(zoo, out, *more, attacks, models="in_resnet14"):
    return [
        *("bench", "--models", models),
        *MEASURED.split(),
        *("--attacks", attacks, "--zoo", str(zoo), "--out", str(out), "--device", "cpu", "--quiet"),
        *more,
    ]


def assert_same_tables(out, expected):
    assert (out / "leaderboard.csv").read_bytes() == (expected / "leaderboard.csv").read_bytes()
    mine, theirs = (
        pd.read_csv(folder / "results.csv", dtype=str).drop(columns=["seconds", "device"])
        for folder in (out, expected)
    )
    pd.testing.assert_frame_equal(mine, theirs)


def log(out):
    path = out / "workers.log"
    return path.read_text() if path.exists() else ""


def pids(out):
    return [int(line.split()[5]) for line in log(out).splitlines() if " is process " in line]


def is_there(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def started(argv, until):
    """A command in a process of its own, once `until` is true."""
    run = subprocess.Popen(
        [sys.executable, "-m", "robust_interp", *argv],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(
            signal.signal, signal.SIGINT, signal.SIG_DFL
        ),  # a shell's background has it ignored
    )
    give_up = time.monotonic() + 300
    while not until() and run.poll() is None and time.monotonic() < give_up:
        time.sleep(0.05)
    assert run.poll() is None, run.communicate()[1]
    return run


def assert_gone(processes):
    give_up = time.monotonic() + 60
    while any(map(is_there, processes)) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not any(map(is_there, processes))


@pytest.mark.slow
def test_worst_and_a_plugin_whose_worker_is_killed(tiny_zoo, tmp_path, local_ray, fresh):
    plugin, flag = tmp_path / "killer.py", tmp_path / "flag"
    plugin.write_text(KILLER.format(flag=str(flag)))
    options = ("--protocol", "worst", "--plugin", str(plugin))
    attacks = "fgsm,killer,pgd(steps=3)"
    assert main(bench(tiny_zoo, tmp_path / "two", *options, "--workers", "2", attacks=attacks)) == 0
    assert flag.exists()
    assert main(bench(tiny_zoo, tmp_path / "one", *options, attacks=attacks)) == 0
    assert_same_tables(tmp_path / "two", tmp_path / "one")
    assert log(tmp_path / "two").count("was lost") == 1
    # The other worker may finish all that is left while the replacement is still starting.
    assert len(set(pids(tmp_path / "two"))) in (2, 3)
    assert "in_resnet14 seed 1 clean, images 9 to 16" in log(tmp_path / "two")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_models_that_are_objects_are_sent(local_ray):
    one, two = evaluate({"net": Net()}), evaluate({"net": Net()}, workers=2, batch_size=3)
    pd.testing.assert_frame_equal(*(table.drop(columns=["seconds", "device"]) for table in (one, two)))
    sends_a_lock = Net()
    sends_a_lock.__dict__["lock"] = threading.Lock()
    with pytest.raises(UserError, match=r"model objects cannot be sent to another process: .*; name"):
        evaluate({"net": sends_a_lock}, workers=2)


@pytest.mark.parametrize(
    ("asked", "environment", "sent"),
    [
        (None, "", "home/.cache/robust-interp"),  # their home may be another one
        (None, "theirs", "theirs"),
        ("mine", "theirs", "mine"),
    ],
)
def test_workers_are_told_of_a_data_folder_by_its_path(monkeypatch, asked, environment, sent):
    told = []

    def pool(workers, make, arguments, *rest):
        told.append(arguments[0].data_dir)
        raise UserError("are not started here")

    monkeypatch.setenv("ROBUST_INTERP_DATA", environment)
    monkeypatch.setenv("HOME", "home")
    monkeypatch.setattr("robust_interp.benchmark.workers.cluster", nullcontext)
    monkeypatch.setattr("robust_interp.benchmark.workers.WorkerPool", pool)
    with pytest.raises(UserError, match="are not started here"):
        evaluate({"net": Net()}, workers=1, data_dir=asked)
    assert told == [sent]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_run_that_is_ended_leaves_no_worker_and_the_next_goes_on(tiny_zoo, tmp_path, signum, status):
    out, options = tmp_path / "out", {"attacks": "fgsm,pgd(steps=15)", "models": "preact_resnet14"}
    run = started(bench(tiny_zoo, out, "--workers", "2", **options), lambda: "pgd" in log(out))
    run.send_signal(signum)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == status, errors
    assert len(pids(out)) == 2
    assert_gone(pids(out))
    for folder in (out, tmp_path / "one"):
        assert main(bench(tiny_zoo, folder, **options)) == 0
    assert_same_tables(out, tmp_path / "one")


@pytest.mark.slow
def test_workers_have_the_plug_ins_that_python_code_has_loaded(fresh, tiny_zoo, tmp_path):
    path = tmp_path / "shift_of_workers.py"
    path.write_text(
        "from robust_interp.plugins import attack\n\n\n"
        "@attack()\n"
        "def shift_of_workers(model, images, labels, *, eps):\n"
        "    return (images + eps).clamp(0, 1)\n"
    )
    plugins.load(path)
    tables = [
        robust_interp.evaluate(
            "in_resnet14",
            attacks="shift_of_workers",
            corruptions="none",
            zoo=tiny_zoo,
            n=6,
            device="cpu",
            workers=workers,
        ).drop(columns=["seconds", "device"])
        for workers in (None, 1)
    ]
    assert "shift_of_workers" in set(tables[0]["perturbation"])
    pd.testing.assert_frame_equal(*tables)
