"""Trainings in worker processes have the weights, bit for bit, of those in one; whatever is killed."""

import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial

import pytest

from robust_interp.cli.main import main
from robust_interp.core.errors import UserError
from robust_interp.training.job import Training
from robust_interp.training.recipe import load
from robust_interp.training.workers import split_into_groups

# A data set of a few digits. The worker that first keeps the state of seed 0 is killed thereafter.
PLUGIN = """
import os, signal, sys
from sklearn.datasets import load_digits
from robust_interp import plugins
from robust_interp.training import resume

@plugins.dataset(classes=10, shape=(1, 8, 8), mean=(0.3,), std=(0.4,), eps_255=(16.0,))
def few(split, root):
    images, labels = load_digits(return_X_y=True)
    at = slice(0, 160) if split == "train" else slice(160, 200)
    return (images[at].reshape(-1, 1, 8, 8) / 16).astype("float32"), labels[at]

if "ray" in sys.argv[0]:
    plain = resume.write

    def write(path, *content):
        plain(path, *content)
        if "seed0" in path.name and not os.path.exists({flag!r}):
            open({flag!r}, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

    resume.write = write
"""


def training(out, plugin, *more):
    command = (
        "train --models in_resnet14 --dataset few --recipe digits --epochs 2 --seeds 2 --threads 1 --quiet"
    )
    return [*command.split(), "--plugin", str(plugin), "--out", str(out), *more]


def weights(out):
    return {folder.name: (folder / "model.safetensors").read_bytes() for folder in out.glob("in_*_seed*")}


def test_groups_leave_no_worker_without_work():
    recipe = load("digits", "in_resnet14", "digits")
    five = [Training("in_resnet14", recipe, seed) for seed in range(5)]
    assert [len(group) for group in split_into_groups(five, at_once=5, workers=1)] == [5]
    assert [len(group) for group in split_into_groups(five, at_once=5, workers=2)] == [3, 2]
    assert [len(group) for group in split_into_groups(five, at_once=1, workers=2)] == [1] * 5
    groups = split_into_groups(five, at_once=2, workers=2)
    assert [what.seed for group in groups for what in group] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "environment", "sent"),
    [
        ([], "", "home/.cache/robust-interp"),  # their home may be another one
        ([], "theirs", "theirs"),
        (["--data-dir", "mine"], "theirs", "mine"),
    ],
)
def test_workers_are_told_of_a_data_folder_by_its_path(tmp_path, monkeypatch, options, environment, sent):
    told = []

    def train_groups(workers, groups, setting, *rest):
        told.append(setting.data_dir)
        raise UserError("no worker is started here")

    monkeypatch.setenv("ROBUST_INTERP_DATA", environment)
    monkeypatch.setenv("HOME", "home")
    monkeypatch.setattr("robust_interp.core.worker_pool.cluster", nullcontext)
    monkeypatch.setattr("robust_interp.training.workers.train_groups", train_groups)
    command = (
        "train --models in_resnet14 --dataset digits --epochs 1 --seeds 2 --workers 1 --device cpu --quiet"
    )
    assert main([*command.split(), "--out", str(tmp_path), *options]) == 1
    assert told == [sent]


@pytest.mark.slow
def test_the_training_of_a_killed_worker_goes_on_to_the_same_weights(tmp_path, local_ray, fresh, capsys):
    plugin, flag = tmp_path / "few.py", tmp_path / "flag"
    plugin.write_text(PLUGIN.format(flag=str(flag)))
    assert main(training(tmp_path / "two", plugin, "--workers", "2", "--device", "cpu")) == 0
    assert flag.exists()
    assert "in_resnet14 seed 0 goes on from epoch 2/2, step 2/4" in capsys.readouterr().err
    assert (tmp_path / "two" / "workers.log").read_text().count("was lost") == 1
    assert main(training(tmp_path / "one", plugin, "--device", "cpu")) == 0
    assert len(weights(tmp_path / "two")) == 2
    assert weights(tmp_path / "two") == weights(tmp_path / "one")
    assert not list((tmp_path / "two").glob(".*"))  # neither states nor locks


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_workers_with_their_states_kept(tmp_path, signum, status):
    out = tmp_path / "zoo"
    command = "train --models in_resnet14 --epochs 400 --save-every 400 --seeds 2 --threads 1 --workers 2"
    run = subprocess.Popen(
        [sys.executable, "-m", "robust_interp", *command.split(), "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    while "2 of 2 workers" not in (line := run.stderr.readline()):
        assert line, "it has ended"
    time.sleep(2)
    run.send_signal(signum)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == status, errors
    assert len(list(out.glob(".*.resume.safetensors"))) == 2
    assert weights(out) == {}  # none is finished
