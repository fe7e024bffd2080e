"""The command line: what it prints, what it refuses in one line, and what it leaves behind."""

import errno
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from support.hand_made import results_beyond_ascii
from support.messages import one_line

from robust_interp import __version__, zoo
from robust_interp.cli.console import console, print_leaderboard, print_models
from robust_interp.cli.main import main
from robust_interp.core.errors import UserError
from robust_interp.core.extras import install
from robust_interp.store import FILE_NAME, Store

OPTIONS = "--models in_resnet14 --n 10 --attacks fgsm --eps 16 --corruptions none --device cpu"
SMALL = OPTIONS.split()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small(command, tiny_zoo, tmp_path):
    """A small bench of in_resnet14; later options win."""
    return lambda *argv: command("bench", "--zoo", tiny_zoo, "--out", tmp_path / "results", *SMALL, *argv)


def believed(folder):
    """What a later run or reader would take from a results folder."""
    tables = list(folder.glob("*.csv")) if folder.is_dir() else []
    if not (folder / FILE_NAME).exists():
        return tables
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        rows = [row for table in ("chunks", "runs") for row in db.execute(f"SELECT * FROM {table}")]
    return tables + rows


def refused(outcome, *parts):
    """One clear line on standard error, nothing on standard output, a status that says so."""
    status, out, err = outcome
    assert status not in (0, None)
    assert out == ""
    assert err.startswith("robust-interp")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    for part in parts:
        assert str(part) in err
    return err


DRAWING = """
import sys
sys.modules["matplotlib"] = None  # as where it is not installed
from robust_interp.cli.main import main
for line in "report", "plot coefficients --models preact_resnet20":
    print(main(line.split()))
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_draws_says_in_one_line_that_matplotlib_is_missing():
    done = subprocess.run([sys.executable, "-c", DRAWING], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"] * 2
    told = f"robust-interp: figures need matplotlib: {install('plots')}"
    assert done.stderr.splitlines() == [told] * 2


# What works.


@pytest.mark.slow
def test_a_bench_prints_a_table_and_writes_both_files(small, tmp_path):
    status, out, err = small()
    assert status == 0
    lines = out.splitlines()
    assert lines[0].startswith("digits, n = 10, protocol final")
    columns = ["model", "seeds", "members", "clean", "fgsm_16", "agreement", "at_chance"]
    assert lines[1].split() == columns  # no rank, which goes by PGD
    assert "no rank for 2 of 2 rows: clean accuracy not clearly above chance" in lines  # untrained
    assert [line.split()[1:3] for line in lines[2:4]] == [["2", "1"], ["2", "2"]]  # seeds, members
    wrote = f"wrote leaderboard.csv, results.csv and environment.json of this run in {tmp_path / 'results'}"
    assert lines[-2] == wrote
    assert lines[-1].startswith("measured 6 new cells in ")
    results = pd.read_csv(tmp_path / "results" / "results.csv")
    assert results["members"].tolist() == [1, 1, 1, 1, 2, 2]
    assert set(results["n"]) == {10}
    board = pd.read_csv(tmp_path / "results" / "leaderboard.csv")
    assert board["clean"][0] == pytest.approx(results["accuracy"][[0, 2]].mean(), abs=0.01)
    # no terminal here: plain lines, no escape codes, the last one says that it is done
    assert "\x1b" not in out + err
    assert "\r" not in out + err
    progress = [line for line in err.splitlines() if "images/s" in line]
    assert progress
    assert progress[-1].startswith("100%")
    assert "in_resnet14 x2 fgsm_16" in progress[-1]
    assert re.search(r"took \d+ s$", progress[-1])


@pytest.mark.slow
def test_quiet_prints_no_progress(small):
    status, out, err = small("--quiet")
    assert status == 0
    assert "images/s" not in err
    assert all(line.startswith("warning: ") for line in err.splitlines())
    assert "leaderboard.csv" in out


@pytest.mark.slow
def test_findings_are_warnings(small):
    _, _, err = small("--quiet")  # an untrained network
    assert "warning: in_resnet14 seed 0: clean accuracy" in err
    assert "is at chance level" in err


@pytest.mark.slow
def test_a_second_run_says_the_same_without_progress(small):
    _, first, _ = small()
    status, again, err = small()
    assert status == 0
    assert again.splitlines()[:-2] == first.splitlines()[:-2]
    assert again.splitlines()[-1] == "nothing new to measure"
    assert "images/s" not in err


@pytest.mark.slow
@pytest.mark.parametrize("there", ["nothing", "an empty folder", "results"])
def test_a_dry_run_counts_the_cells_and_writes_nothing(small, tmp_path, there):
    results = tmp_path / "results"
    if there == "an empty folder":
        results.mkdir()
    if there == "results":
        assert small("--n", "5")[0] == 0
    before = {path: path.read_bytes() for path in results.rglob("*")} if results.exists() else None
    status, out, err = small("--dry-run")
    assert (status, err) == (0, "")
    assert "digits, n = 10, protocol final: 6 cells" in out  # clean and fgsm_16 of 0, 1 and both
    assert "per model, 2 cells:\n  clean\n  fgsm at eps 16\n" in out
    assert "6 cells to measure, 0 already stored; about" in out
    assert "at most" not in out
    assert "at most about" in small("--dry-run", "--protocol", "worst")[1]
    after = {path: path.read_bytes() for path in results.rglob("*")} if results.exists() else None
    assert after == before


@pytest.mark.slow
def test_a_dry_run_after_the_run_has_nothing_to_measure(small):
    small("--quiet")
    assert "0 cells to measure, 6 already stored" in small("--dry-run")[1]
    assert "3 cells to measure, 6 already stored" in small("--dry-run", "--attacks", "fgsm,ifgsm")[1]


@pytest.mark.slow
def test_a_dry_run_counts_two_recipes_of_a_network_that_share_a_seed(small, own_zoo):
    shutil.copytree(own_zoo / "in_resnet14.digits_none_seed1", own_zoo / "in_resnet14.digits_long_seed0")
    ways = ("--zoo", own_zoo, "--models", "in_resnet14", "--seeds", "0,", "--no-ensembles", "--dry-run")
    _, out, _ = small(*ways)
    for recipe in ("none", "long"):
        assert f"to measure: 2 cells of in_resnet14 seed 0@{recipe}\n" in out
    assert "4 cells to measure, 0 already stored" in out


@pytest.mark.slow
def test_what_attacks_on_several_parts_share_is_not_stored_already(small):
    """Two members and their ensemble: clean and FGSM each, and FGSM on one member; clean is shared."""
    ways = ("--ensemble-attack", "white-box,member:0")
    assert "7 cells to measure, 0 already stored" in small("--dry-run", *ways)[1]
    assert "7 cells, 0 of them already stored" in small(*ways)[2]


@pytest.mark.slow
def test_seeds_can_be_counted_or_named(small, tmp_path):
    def rows(*options):
        shutil.rmtree(tmp_path / "results", ignore_errors=True)
        assert small("--quiet", "--attacks", "none", *options)[0] == 0
        return pd.read_csv(tmp_path / "results" / "results.csv")["train_seed"].tolist()

    assert rows("--seeds", "1") == [0]
    assert rows("--seeds", "1,") == [1]
    assert rows("--seeds", "0,1", "--no-ensembles") == [0, 1]
    assert rows("--seeds", "2", "--no-ensembles") == [0, 1]


@pytest.mark.slow
def test_radii_that_are_named_twice_are_measured_once_in_order(small, tmp_path):
    assert small("--quiet", "--eps", "16,8,16.0,8")[0] == 0
    head = (tmp_path / "results" / "leaderboard.csv").read_text().splitlines()[0]
    assert [name for name in head.split(",") if name.startswith("fgsm")] == [
        "fgsm_8",
        "fgsm_8_std",
        "fgsm_16",
        "fgsm_16_std",
    ]


def test_a_name_with_colons_and_brackets_is_printed_as_it_is(capsys):
    console().print("mynets:train[red]: clean accuracy")
    assert capsys.readouterr().out == "mynets:train[red]: clean accuracy\n"


def test_a_column_with_brackets_keeps_its_name(capsys):
    board = pd.DataFrame(
        {"model": ["net"], "n_examples": [10], "protocol": ["final"], "rank": [1], "a[red]x": [50.0]}
    )
    print_leaderboard(board, "digits", {"final": "a[red]x"}, ["model", "a*"])
    assert capsys.readouterr().out.splitlines()[1].split() == ["model", "a[red]x"]


@pytest.mark.slow
def test_protocol_worst_reaches_the_tables(small, tmp_path):
    assert small("--quiet", "--protocol", "worst")[0] == 0
    results = pd.read_csv(tmp_path / "results" / "results.csv")
    assert set(results["protocol"]) == {"worst"}
    assert "worst(fgsm)" in set(results["perturbation"])
    by_kind = results[results["members"] == 2].set_index("perturbation")["accuracy"]
    with Store(tmp_path / "results") as store:
        (plan,) = store.plans()
        cells = [cell for cell in plan.cells if cell.classifier.members == 2]
        right = [store.read(cell.key, 10).correct(store.labels(cell.fingerprint)) for cell in cells]
    assert [cell.perturbation.kind for cell in cells] == ["clean", "attack"]
    assert by_kind["clean"] == 100 * right[0].mean()
    assert by_kind["fgsm"] == by_kind["worst(fgsm)"] == 100 * (right[0] & right[1]).mean()


@pytest.mark.slow
def test_all_test_images_can_be_asked_for(small, tmp_path):
    assert small("--quiet", "--attacks", "none", "--seeds", "1", "--n", "all")[0] == 0
    assert pd.read_csv(tmp_path / "results" / "results.csv")["n"].tolist() == [450]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_weights_from_a_file_give_the_numbers_of_the_zoo(command, small, tiny_zoo, tmp_path, suffix):
    state = load_file(tiny_zoo / "in_resnet14.digits_none_seed1" / "model.safetensors")
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pt":
        torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, path)
    else:
        save_file(state, path)
    assert small("--quiet", "--seeds", "1,")[0] == 0
    expected = pd.read_csv(tmp_path / "results" / "results.csv")["accuracy"]
    status, *_ = command("bench", "--checkpoint", path, "--out", tmp_path / "mine", *SMALL, "--quiet")
    assert status == 0
    found = pd.read_csv(tmp_path / "mine" / "results.csv")
    assert found["accuracy"].tolist() == expected.tolist()
    assert found["model"].tolist() == ["in_resnet14"] * 2


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished_and_says_so(small, command, tmp_path, monkeypatch):
    plain, calls = Store.append, []

    def append(self, *arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        plain(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "append", append)
        status, out, err = small("--quiet")
    assert (status, out) == (130, "")
    assert err.strip().count("\n") == 0
    assert "finished work is saved" in err
    assert "4 cells to measure, 2 already stored" in small("--dry-run")[1]
    shown = command("leaderboard", tmp_path / "results", "--partial", "--format", "json")[1]
    assert [(row["seeds"], row["members"], row["incomplete"]) for row in json.loads(shown)] == [(1, 1, "2/4")]
    assert small("--quiet")[0] == 0
    assert not list((tmp_path / "results").glob("unfinished*"))


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_as_ctrl_c_does(small, monkeypatch, request, signum):
    # Under nohup SIGHUP is ignored, by the command, too.
    request.addfinalizer(partial(signal.signal, signum, signal.signal(signum, signal.SIG_DFL)))
    plain, before = Store.append, signal.getsignal(signum)

    def append(self, *arguments):
        plain(self, *arguments)
        signal.raise_signal(signum)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "append", append)
        status, out, err = small("--quiet")
    assert (status, out) == (128 + signum, "")
    assert "finished work is saved" in err
    assert "5 cells to measure, 1 already stored" in small("--dry-run")[1]
    assert signal.getsignal(signum) is before


@pytest.mark.parametrize("is_explained", [False, True])
def test_a_signal_that_ends_a_worker_first_is_told_as_a_signal(monkeypatch, request, is_explained):
    """A signal to the process group may reach a worker of the data set before the command."""
    dead = RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")

    def run(*_):
        threading.Timer(0.02, os.kill, [os.getpid(), signal.SIGTERM]).start()
        if is_explained:
            raise UserError("a process that decodes images has ended") from dead
        raise dead

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    request.addfinalizer(partial(signal.signal, signal.SIGTERM, before))
    monkeypatch.setattr("robust_interp.cli.ls.run", run)
    monkeypatch.setattr("robust_interp.cli.main.SIGNALS_APART", 20.0)
    assert main(["ls", "attacks"]) == 143


def test_a_worker_that_ends_after_the_signal_does_not_replace_it(monkeypatch, request):
    """torch raises an error wherever the command is: while it stops, too."""

    def run(*_):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            assert signal.getsignal(signal.SIGCHLD) is not ended
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")

    def ended(*_):
        raise AssertionError

    for signum, handler in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGCHLD, ended)):
        request.addfinalizer(partial(signal.signal, signum, signal.signal(signum, handler)))
    monkeypatch.setattr("robust_interp.cli.ls.run", run)
    assert main(["ls", "attacks"]) == 143


def test_ctrl_c_while_the_command_starts_is_one_line():
    """As it comes while the command's own modules are imported."""
    code = """
import sys
from robust_interp.__main__ import start

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "robust_interp.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Stop())
sys.exit(start())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "\nrobust-interp: stopped before anything was begun\n"


def test_the_zoo_is_listed(command, tiny_zoo):
    status, out, _ = command("models", "--zoo", tiny_zoo, "--dataset", "digits")
    assert status == 0
    assert __version__ in out
    lines = out.splitlines()
    (at,) = [at for at, line in enumerate(lines) if line.startswith("in_resnet14.digits_none_seed1")]
    assert f"in {tiny_zoo}:" in lines[:at]
    assert "lambda_in_resnext29_8x64d" in out


def test_a_closed_output_is_no_error(tmp_path):
    results_beyond_ascii(tmp_path / "results")
    script = f"{sys.executable} -m robust_interp leaderboard {tmp_path / 'results'} >&-"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_names_of_checkpoints_are_whole_on_a_narrow_terminal(monkeypatch, tiny_zoo):
    shown = Console(file=io.StringIO(), width=60, force_terminal=True, no_color=True)
    monkeypatch.setattr("robust_interp.cli.console.console", lambda **options: shown)
    print_models(zoo.checkpoints(tiny_zoo, "cifar10"))
    lines = shown.file.getvalue().splitlines()
    names = {line.split()[0] for line in lines if "_seed" in line}
    assert "in_resnet110.cifar10_quick_warmup_epochs_1_bf16_seed0" in names
    assert lines.count("not shown for lack of space: clean, lambda_init, params")


def test_one_folder_can_be_listed_alone(command, tiny_zoo):
    def names(*options):
        status, out, err = command("models", "--dataset", "DIGITS", "--zoo", tiny_zoo, *options)
        assert (status, err) == (0, "")
        return {line.split()[0] for line in out.splitlines() if "_seed" in line}

    assert names("--only-zoo") == {path.name for path in tiny_zoo.iterdir()}
    assert names() > names("--only-zoo")
    assert command("models", "--only-zoo")[0] == 1


def test_a_data_set_without_checkpoints_must_be_a_known_one(command, tiny_zoo):
    status, out, err = command("models", "--dataset", "digit", "--zoo", tiny_zoo)
    assert (status, out) == (1, "")
    one_line(err, "unknown data set 'digit'", "digits")
    assert command("models", "--dataset", "cifar10", "--zoo", tiny_zoo, "--only-zoo")[0] == 0


@pytest.mark.parametrize(
    "argv",
    [
        "bench --models in_resnet20 --n 2",
        "audit --models in_resnet20 --n 2",
        "stability --models in_resnet20 --n 1",
        "plot coefficients --models in_resnet20",
        "plot landscape --models in_resnet20",
    ],
)
def test_every_command_can_leave_the_embedded_checkpoints_out(command, tiny_zoo, tmp_path, argv):
    out = ("--out", tmp_path / "out")
    status, _, err = command(*argv.split(), "--zoo", tiny_zoo, "--only-zoo", *out)
    assert status == 1
    assert (
        "in_resnet20 has no checkpoint for digits in the zoo (there are in_resnet14, preact_resnet14)" in err
    )
    assert command(*argv.split(), "--only-zoo", *out)[::2] == (
        1,
        "robust-interp: --only-zoo needs a zoo folder: name it with --zoo\n",
    )


def test_the_embedded_dataset_is_ready(command):
    status, out, _ = command("data", "digits")
    assert status == 0
    assert out.startswith("digits: ready, 450 test images")


@pytest.mark.parametrize(
    "started",
    [[sys.executable, "-m", "robust_interp"], [Path(sys.executable).with_name("robust-interp")]],
    ids=["module", "installed"],
)
def test_it_runs_as_a_module_and_as_the_installed_command(started):
    done = subprocess.run([*started, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"robust-interp {__version__}\n")


# What is refused.


MISTAKES = [
    (["--eps", "0.03"], ["0.03", "1/255", "did you mean 7.65?"]),
    (["--eps", "0.01,0.05"], ["did you mean 2.55,12.8?"]),
    (["--eps", "-1"], ["-1", "radius", "1/255"]),
    (["--eps", "-1,2"], ["--eps"]),
    (["--eps", "0"], ["0: a radius of 0 is a control", "pgd(eps=0)"]),
    (["--eps", "1,0"], ["1,0: a radius"]),
    (["--eps", "nan"], ["nan: a radius"]),
    (["--eps", "inf"], ["inf: a radius"]),
    (["--eps", "300"], ["300: a radius", "255"]),
    (["--eps", ""], ["at least one radius"]),
    (["--eps", ","], ["at least one radius"]),
    (["--eps", "abc"], ["'abc' is not a list of numbers such as 1,2,4"]),
    (["--eps", "1;2"], ["'1;2' is not a list of numbers"]),
    (["--n", "0"], ["--n", "at least 1"]),
    (["--n", "-1"], ["--n", "'-1'"]),
    (["--n", "ten"], ["--n", "'ten'"]),
    (["--n", "451"], ["n must be 1 to 450", "digits", "not 451"]),
    (["--models", ""], ["no model given", "all"]),
    (["--models", ","], ["no model given"]),
    (["--models", "in_resnet41"], ["unknown model 'in_resnet41'", "in_resnet14"]),
    (["--models", "in_resnet14,zzz*"], ["unknown model 'zzz*'"]),
    (["--models", "resnet50"], ["resnet50 has no checkpoint for digits", "--checkpoint"]),
    (["--dataset", "digitz"], ["unknown data set 'digitz'", "digits"]),
    (["--attacks", "fgmm"], ["unknown attack 'fgmm'", "fgsm"]),
    (["--attacks", ""], ["no attack given", "none"]),
    (["--attacks", "pgd(stepz=3)"], ["pgd has no parameter 'stepz'", "steps"]),
    (["--attacks", "pgd(eps=8)"], ["eps must be above 0 and at most 1"]),
    (["--attacks", "pgd(steps=0)"], ["steps must be a whole number of at least 1"]),
    (["--corruptions", "gausian_noise"], ["unknown corruption 'gausian_noise'", "gaussian_noise"]),
    (["--corruptions", "comon"], ["unknown corruption 'comon'", "did you mean common"]),
    (["--corruptions", "shot_noise(severity=6)"], ["severity must be 1, 2, 3, 4 or 5, not 6"]),
    (["--corruptions", ""], ["no corruption given", "none"]),
    (["--protocol", "wurst"], ["--protocol: invalid choice: 'wurst'; did you mean worst?"]),
    (["--device", "cuba"], ["cannot use device 'cuba'"]),
    (["--batch-size", "0"], ["batch size must be a whole number of at least 1, not 0"]),
    (["--batch-size", "many"], ["--batch-size", "many"]),
    (["--seeds", "7,"], ["no checkpoint with train seed 7"]),
    (["--seeds", "-1"], ["--seeds", "'-1'"]),
    (["--seeds", "0"], ["--seeds", "at least 1"]),
    (["--seeds", ","], ["--seeds"]),
    (["--seed", "-1"], ["--seed", "'-1'"]),
    (["--zoo", "nowhere"], ["there is no zoo folder nowhere"]),
    (["--corruptions-dir", "nowhere", "--corruptions", "noise"], ["digits"]),
    (["--checkpoint", "nowhere.safetensors"], ["there is no checkpoint file nowhere.safetensors"]),
    (["--checkpoint", "w.pt", "--models", "in_resnet14,preact_resnet14"], ["exactly one"]),
    (["--checkpoint", "w.pt", "--models", "in_resnet*"], ["exactly one"]),
    (["--checkpoint", "w.pt", "--models", "in_resnet41"], ["unknown model 'in_resnet41'"]),
    (
        ["--epz", "1"],
        ["unrecognized arguments: --epz; did you mean --eps?; see robust-interp bench --help"],
    ),
    (["--protocol", "best"], ["invalid choice: 'best' (choose from", "worst"]),
    (["--zzzzz"], ["unrecognized arguments: --zzzzz; see robust-interp bench --help"]),
]


@pytest.mark.parametrize(("options", "parts"), MISTAKES, ids=[" ".join(options) for options, _ in MISTAKES])
def test_a_mistake_is_one_line_and_leaves_nothing_to_believe(small, tmp_path, options, parts):
    refused(small(*options), *parts)
    assert believed(tmp_path / "results") == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("audit", "--models", "a", "--epz", "1"),
            "audit: unrecognized arguments: --epz; did you mean --eps?",
        ),
        (
            ("train", "--models=a", "--epoch", "1", "--lrr=3", "--x"),
            "train: unrecognized arguments: --lrr --x;",
        ),
        (("stability", "--seedz", "2"), "stability: unrecognized arguments: --seedz; did you mean --seed?"),
        (
            ("plot", "landscape", "--seeds", "1", "--models", "a"),
            "landscape: unrecognized arguments: --seeds",
        ),
        (
            ("leaderboard", "--colums", "model"),
            "show: unrecognized arguments: --colums; did you mean --columns?",
        ),
        (
            ("bench", "--models", "a", "b"),
            "arguments: b; --models takes one value: a list has commas, without spaces; see",
        ),
        (
            ("train", "--models", "a", "b"),
            "train: unrecognized arguments: b; --models takes one value: a list has commas, without spaces",
        ),
        (("bench", "--models", "a", "--eps", "2", "4"), "arguments: 4; --eps takes one value: a list"),
        (("bench", "--seeds=1", "--attacks", "pgd", "fgsm"), "arguments: fgsm; --attacks takes one value: a"),
        (("train", "--models", "a", "--epochs", "-2", "3"), "arguments: 3; --epochs takes one value; see"),
        (("audit", "--eps", "8", "16", "--models", "a"), "arguments: 16; --eps takes one value: a list"),
        (
            ("leaderboard", "compare", "results", "--models", "a", "b"),
            "argument --models: 'a' is one entry, not two with a comma, such as",
        ),
        (("bench", "in_resnet20", "--n", "5"), "arguments: in_resnet20; did you mean --models in_resnet20?"),
        (("bench", "--quiet", "a"), "bench: unrecognized arguments: a; did you mean --models a?; see"),
        (("bench", ""), "bench: unrecognized arguments: ''; see"),
        (("bench", "-n", "5"), "bench: unrecognized arguments: -n 5; see"),
        (("bench", "--strong", "apgd_ce", "apgd_t"), "arguments: apgd_t; --strong takes one value: a list"),
        (("audit", "--eps", "8"), "audit: the following arguments are required: --models; see"),
        (("train",), "train: the following arguments are required: --models; see"),
        (("audit", "a", "--models", "b"), "audit: name all models with --models; see"),
        (("plot", "--modles", "a", "landscape"), "plot: unrecognized arguments: --modles; did you mean --mo"),
        (
            ("plot", "--models", "a", "landscape"),
            "plot: unrecognized arguments: --models; it belongs after one of coefficients, landscape, curve;",
        ),
        (("store", "--check", "x"), "store: unrecognized arguments: --check; see"),
        (("--verbose", "bench"), "robust-interp: unrecognized arguments: --verbose; did you mean --version?"),
        (("ls", "models", "-z"), "unrecognized arguments: -z; see"),
    ],
)
def test_a_mistyped_option_is_named_and_not_what_it_makes_of_other_arguments(command, words, told):
    refused(command(*words), told)


def test_an_option_may_be_shortened_and_a_name_after_two_dashes_begin_with_them(command):
    assert command("ls", "attacks", "--che")[0] == 0
    refused(command("audit", "--", "--name"), "--name")


def test_an_unknown_command_is_one_line(command):
    refused(command("benhc"), "invalid choice: 'benhc'; did you mean bench?")
    for more in ((), ("--models", "a,b"), ("results", "--n", "5")):
        refused(command("leaderboard", "comapre", *more), "invalid choice: 'comapre'; did you mean compare?")
    refused(command("benhc", "--models", "a"), "invalid choice: 'benhc'; did you mean bench?")
    refused(command("leaderboard", "rsults"), "there are no results in rsults")
    refused(command("xyz"), "invalid choice: 'xyz' (choose from", "bench", "robustbench")
    refused(command())


def test_a_checkpoint_without_a_model_is_refused(command, tmp_path):
    refused(command("bench", "--checkpoint", "w.pt"), "exactly one registered model in --models")
    assert believed(tmp_path / "results") == []


@pytest.mark.parametrize("place", ["below a file", "a file"])
def test_an_output_folder_that_cannot_be_written_is_refused(small, tmp_path, place):
    (tmp_path / "file").write_text("kept")
    out = tmp_path / "file" / "results" if place == "below a file" else tmp_path / "file"
    refused(small("--out", out), out)
    assert (tmp_path / "file").read_text() == "kept"


def test_a_results_folder_that_is_not_one_is_refused(small, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / FILE_NAME).write_text("not a database, but something of the user's" * 100)
    refused(small(), tmp_path / "results" / FILE_NAME, "not a database")
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == [FILE_NAME]


@pytest.mark.slow
def test_a_corrupted_checkpoint_is_refused_by_name(small, tiny_zoo, tmp_path):
    shutil.copytree(tiny_zoo, tmp_path / "spoilt")
    path = tmp_path / "spoilt" / "in_resnet14.digits_none_seed1" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5000] ^= 1
    path.write_bytes(content)
    refused(small("--zoo", tmp_path / "spoilt"), "broken checkpoint in_resnet14.digits_none_seed1", path)
    path.write_bytes(content[:5000])
    refused(small("--zoo", tmp_path / "spoilt"), "broken checkpoint in_resnet14.digits_none_seed1", path)
    assert believed(tmp_path / "results") == []
    assert small("--zoo", tmp_path / "spoilt", "--seeds", "1", "--quiet")[0] == 0  # the other is sound


def test_a_checkpoint_for_another_number_of_classes_is_refused(small, tiny_zoo, tmp_path):
    model = zoo.create("in_resnet14", num_classes=7, in_chans=1)
    cfg = {"num_classes": 7, "input_size": [1, 8, 8], "mean": [0.3], "std": [0.4]}
    record = {"lambda_init": None, "parameters": 1, "clean_accuracy": 99.0, "clean_n": 450}
    zoo.save(model, tmp_path / "other" / "in_resnet14.digits_none_seed0", cfg, {}, record, half=False)
    refused(small("--zoo", tmp_path / "other"), "in_resnet14.digits_none_seed0", "(8, 7)", "(8, 10)")
    assert believed(tmp_path / "results") == []


@pytest.mark.slow
def test_weights_of_another_architecture_or_number_of_classes_are_refused(small, tmp_path):
    path = tmp_path / "w.safetensors"
    for name, classes, parts in (
        ("preact_resnet14", 10, ["keys missing", "lambda"]),
        ("in_resnet20", 10, ["keys unexpected", "..."]),
        ("in_resnet14", 100, ["2 keys of another shape: fc.weight, fc.bias"]),
    ):
        save_file(zoo.create(name, num_classes=classes, in_chans=1).state_dict(), path)
        refused(small("--checkpoint", path), path, "does not fit", *parts)
    path.write_text("<!DOCTYPE html><html>Too many requests</html>")
    refused(small("--checkpoint", path), path)
    assert believed(tmp_path / "results") == []


@pytest.mark.parametrize(
    ("argv", "remedies"),
    [
        (["bench"], "a smaller --batch-size or another --device"),
        (["train", "--models", "in_resnet14"], "--at-once 1 or another --device"),
        (["stability", "--models", "in_resnet14"], "another --device"),
    ],
    ids=lambda argv: argv[0] if isinstance(argv, list) else "",
)
def test_a_lack_of_memory_is_met_by_options_that_the_command_has(command, monkeypatch, argv, remedies):
    def runs_out(arguments):
        raise MemoryError

    monkeypatch.setattr(f"robust_interp.cli.{argv[0]}.run", runs_out)
    status, _, err = command(*argv)
    assert status == 1
    assert err.endswith(f"finished work is saved: try {remedies}\n")


def test_missing_cifar10_is_explained_without_a_network(small, command, tmp_path, monkeypatch):
    import socket

    def unreachable(*_, **__):
        raise OSError("no network here")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, unreachable)
    folder = tmp_path / "data" / "cifar-10-batches-py"
    hint = "robust-interp data cifar10 --download"
    refused(small("--dataset", "cifar10", "--data-dir", tmp_path / "data"), folder, "does not exist", hint)
    assert believed(tmp_path / "results") == []
    status, out, err = command("data", "cifar10", "--data-dir", tmp_path / "data")
    assert (status, err) == (1, "")
    assert str(folder) in out
    err = refused(
        command("data", "cifar10", "--data-dir", tmp_path / "data", "--download"), "cannot download"
    )
    assert "no network here" in err
    refused(command("data", "--download"), "name the data sets")
    refused(command("data", "cifar", "--download"), "unknown data set 'cifar'", "cifar10")


@pytest.mark.slow
def test_a_dataset_without_checkpoints_says_how_to_get_one(small, tmp_path, cifar_root):
    outcome = small("--dataset", "cifar100", "--data-dir", tmp_path)
    refused(outcome, "cifar100", "cifar-100-python")
    (tmp_path / "empty").mkdir()
    outcome = small("--dataset", "cifar10", "--data-dir", cifar_root, "--models", "plain_net14")
    refused(outcome, "cifar10", "robust-interp train")


@pytest.mark.slow
def test_bench_says_what_is_new_and_writes_what_it_ran_with(command, tiny_zoo, tmp_path):
    quick = ["--zoo", tiny_zoo, "--models", "preact_resnet14", "--n", "5", "--attacks", "fgsm", "--eps", "8"]
    quick += ["--corruptions", "none", "--out", tmp_path]
    status, out, err = command("bench", *quick)
    assert status == 0
    assert "the first 5 test images" in err
    assert "1 model, 2 cells, 0 of them already stored" in err
    assert out.splitlines()[-1].startswith("measured 2 new cells in ")
    found = json.loads((tmp_path / "environment.json").read_text())
    assert found["device"] == "cpu"
    assert found["packages"]["torch"] == torch.__version__.partition("+")[0]
    assert "thread" in found["threads"]
    status, out, err = command("bench", *quick)
    assert "2 cells, 2 of them already stored" in err
    assert out.splitlines()[-2:] == [
        f"wrote leaderboard.csv and results.csv of this run in {tmp_path}",
        "nothing new to measure",
    ]
    assert json.loads((tmp_path / "environment.json").read_text()) == found  # of what has measured them


# --- data: the user's own images


def test_data_shows_a_source_with_its_size_classes_and_fingerprint(command, tmp_path):
    from support.own_images import pictures, write_folder

    folder = write_folder(tmp_path / "val", *pictures())
    status, out, err = command("data", f"folder:{folder}", "--decode-workers", "0")
    assert (status, err) == (0, "")
    assert re.match(
        rf"folder:{folder}: ready, 12 test images of 3x8x8, 3 classes, fingerprint \w{{12}}\n", out
    )
    write_folder(folder, *pictures(3, (9, 20)), "abc")
    (folder / "a" / "00003.png").write_bytes(b"")
    status, out, _ = command("data", f"folder:{folder}")
    assert status == 1
    assert "not ready, 12 test images of 2 sizes, 8 to 9 high and 8 to 20 wide" in out
    assert "cannot read a/00003.png" in out
    shown = command("data", f"folder:{folder}", "--skip-unreadable", "--resize", "8", "--crop", "8")
    assert shown[0] == 0
    assert "ready, 11 test images of 3x8x8" in shown[1]


@pytest.mark.slow
def test_data_lists_the_kinds_of_sources(command):
    status, out, _ = command("data")
    assert status == 0
    for kind in ("folder:PATH", "imagenet:PATH", "npz:FILE", "parquet:FILE", "hf:NAME"):
        assert f"\n{kind}" in out


def test_data_downloads_only_what_can_be(command, tmp_path):
    refused(command("data", f"folder:{tmp_path}", "--download"), "only hf:NAME can be downloaded")


@pytest.mark.parametrize("line", ["leaderboard theirs", "store check theirs", "models --zoo theirs"])
def test_another_users_folder_is_one_line(tmp_path, monkeypatch, command, line):
    """As root, which may read everything, cannot be refused by a mode."""

    def refused(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs").mkdir()
    with monkeypatch.context() as theirs:
        for name in ("is_file", "iterdir"):
            theirs.setattr(Path, name, refused)
        status, _, err = command(*line.split())
    assert status == 1
    assert err.startswith("robust-interp: cannot use ")
    assert "Permission denied" in err
    assert err.count("\n") == 1


def test_a_refusal_without_a_file_name_is_not_taken_for_a_folder(monkeypatch):
    """As by a socket or a process: nobody could act on "cannot use None"."""

    def refused(arguments):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("robust_interp.cli.main.load_plugins", refused)
    with pytest.raises(PermissionError, match="Operation not permitted"):
        main(["ls", "attacks"])
