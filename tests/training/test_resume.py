"""Trainings that are stopped go on bit for bit; those that fail are recorded and do not stop the others."""

import csv
import json
import shutil
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.training import more_arguments, train_one

from robust_interp import zoo
from robust_interp.cli.main import main
from robust_interp.core.errors import Stopped, UserError
from robust_interp.training import job, resume, side_by_side, train
from robust_interp.training.recipe import Recipe
from robust_interp.training.trainer import TrainingError

pytestmark = pytest.mark.usefixtures("a_third")

# 2 x 6 steps; the drops of the learning rate are at steps 6 and 9.
RECIPE = Recipe("any", epochs=2, batch_size=86, stored="keep", warmup_epochs=1)
DROPOUT = {"drop_rate": 0.2}  # so that torch's own random state matters


@pytest.fixture(autouse=True)
def _signals_are_not_ignored():
    """As they are where a test run was started in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def last_state():
    """The state that was kept last, after its file has gone."""
    kept, plain = {}, resume.write

    def write(path, tensors, values):
        kept.update({name: tensor.detach().clone() for name, tensor in tensors.items()})
        kept["curve"] = [without_speed(line) for line in values["fit"]["curve"]]
        plain(path, tensors, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume, "write", write)
        yield kept


@pytest.fixture(scope="module")
def whole(tmp_path_factory, a_third):
    """An undisturbed training: the hash of its weights, and its last state."""
    with last_state() as kept:
        return run(tmp_path_factory.mktemp("whole")).sha256, kept


def without_speed(line):
    return {name: value for name, value in line.items() if name != "images_per_second"}


def run(out, report=lambda status: None, seed=0, **options):
    torch.manual_seed(99)  # what the process did before is not to matter
    return train_one("in_resnet14", "digits", RECIPE, seed, out, DROPOUT, report=report, **options)


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def same(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert value == right[name] if name == "curve" else torch.equal(value, right[name]), name


def at_step(step, action):
    """A report that acts once so many steps are done."""
    return lambda status: action() if round(status.share * 12) == step and not status.line else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "signum"),
    [(1, signal.SIGINT), (5, signal.SIGTERM), (6, signal.SIGINT), (10, signal.SIGTERM)],
)
def test_a_stopped_training_goes_on_bit_for_bit(tmp_path, monkeypatch, whole, step, signum):
    monkeypatch.setattr(side_by_side, "REPORT_EVERY", 0)
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Stopped) as stopped:
        run(tmp_path / "stopped", at_step(step, lambda: signal.raise_signal(signum)))
    assert stopped.value.signum == signum
    assert handlers == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    assert files(tmp_path / "stopped") == [".in_resnet14.digits_any_seed0.resume.safetensors"]
    assert zoo.checkpoints(tmp_path / "stopped", "none") == []
    shares = []
    with last_state() as kept:
        resumed = run(tmp_path / "stopped", lambda status: shares.append(round(status.share * 12)))
    assert min(shares) == step + 1
    same(kept, whole[1])
    assert resumed.sha256 == whole[0]
    assert files(tmp_path / "stopped") == ["config.json", "curve.csv", "model.safetensors", "train.json"]


@pytest.mark.slow
def test_a_killed_training_goes_on_from_the_last_epoch_that_was_kept(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(side_by_side, "REPORT_EVERY", 0)

    def die():
        raise MemoryError

    with pytest.raises(MemoryError):
        run(tmp_path / "killed", at_step(9, die))
    first = []
    with last_state() as kept:
        resumed = run(tmp_path / "killed", lambda status: first.append(status.share))
    assert first[0] == pytest.approx(7 / 12)
    same(kept, whole[1])
    assert resumed.sha256 == whole[0]


@pytest.mark.slow
def test_a_training_that_goes_on_says_so_before_its_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side, "REPORT_EVERY", 0)
    with pytest.raises(Stopped):
        run(tmp_path, at_step(2, lambda: signal.raise_signal(signal.SIGINT)))
    told = []

    def resumed(what, start):
        told.append((what.seed, start.step, start.steps))
        raise MemoryError  # enough seen

    trainings = [job.Training("in_resnet14", RECIPE, seed) for seed in (1, 0)]
    with pytest.raises(MemoryError), more_arguments(DROPOUT):
        train.train_together(trainings, "digits", tmp_path, resumed=resumed)
    assert told == [(0, 2, 12)]


def test_the_work_of_a_training_is_its_passes_weighed_by_the_size_of_the_model():
    short, long = (job.Training("in_resnet14", Recipe("any", epochs=e), 0) for e in (2, 6))
    training = train.data.load("digits", "train")
    work = job.work([short, long], training)
    (size, passes), (_, more) = work[short], work[long]
    model = zoo.create("in_resnet14", num_classes=10, in_chans=1)
    assert size == sum(p.numel() for p in model.parameters()) / 1e6
    assert passes == pytest.approx(2 * len(training) * 3 * size)  # the way back takes two passes' time
    assert more == pytest.approx(3 * passes)


@pytest.mark.slow
def test_with_save_every_fewer_epochs_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side, "REPORT_EVERY", 0)

    def die():
        raise MemoryError

    with pytest.raises(MemoryError):
        run(tmp_path, at_step(9, die), save_every=2)
    assert files(tmp_path) == []


def test_a_second_signal_is_not_held_back():
    with resume.StopSignals() as stop:
        assert not stop
        signal.raise_signal(signal.SIGINT)
        assert stop
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
def test_a_state_that_is_damaged_or_of_another_training_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side, "REPORT_EVERY", 0)
    with pytest.raises(Stopped):
        run(tmp_path, at_step(2, lambda: signal.raise_signal(signal.SIGINT)))
    (path,) = tmp_path.iterdir()
    with pytest.raises(UserError, match="unfinished training with different model_args; remove it"):
        train_one("in_resnet14", "digits", RECIPE, 0, tmp_path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(UserError, match=f"cannot read {path}: .*; remove it to start over"):
        run(tmp_path)


@pytest.mark.slow
def test_a_damaged_state_does_not_stop_the_other_seeds(tmp_path, capsys):
    command = ["train", "in_resnet14", "--epochs", "1", "--seeds", "2", "--quiet", "--device", "cpu"]
    command += ["--out", str(tmp_path)]
    folder = tmp_path / "in_resnet14.digits_digits_1epochs_seed0"
    state = resume.state_file(folder)
    state.write_bytes(b"no state")
    assert main(command) == 1
    assert f"failed: cannot read {state}: " in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {state.name, folder.name[:-1] + "1"}
    sweeping = ["sweep", "--models", "in_resnet14", "--n", "2", "--attacks", "none", "--corruptions", "none"]
    (tmp_path / "zoo").mkdir()
    for path in list(tmp_path.iterdir()):
        if path.name != "zoo":
            path.rename(tmp_path / "zoo" / path.name)
    assert main([*sweeping, *command[2:]]) == 1
    (line,) = csv.DictReader((tmp_path / "sweep.csv").open())
    assert (line["seeds"], line["failed"]) == ("1", "0")  # it has not failed


@pytest.mark.slow
def test_a_checkpoint_is_trained_by_one_process_at_a_time(tmp_path, start_command):
    folder = tmp_path / "in_resnet14.digits_digits_seed0"
    argv = ["train", "in_resnet14", "--seeds", "1", "--quiet", "--out", str(tmp_path)]
    with resume.lock(folder):
        second = start_command(argv)
        second.join()
        with pytest.raises(UserError, match="seed0 is being trained by another process"), resume.lock(folder):
            pass
    assert second.exitcode == 1
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".in_resnet14.digits_digits_seed0.lock").touch()  # of a killed process
    with resume.lock(folder):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_state_of_a_finished_training_is_no_training(tmp_path, capsys):
    command = ["train", "in_resnet14", "--epochs", "1", "--seeds", "1", "--quiet", "--out", str(tmp_path)]
    assert main(command) == 0
    (folder,) = tmp_path.iterdir()
    orphan = resume.state_file(folder)
    orphan.touch()  # as a kill leaves it between the checkpoint and the removal of the state
    assert main(command) == 0
    assert "exists already, skipped" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [folder]


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory, a_third):
    """The state of a training that was stopped after two steps."""
    folder = tmp_path_factory.mktemp("unfinished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side_by_side, "REPORT_EVERY", 0)
        with pytest.raises(Stopped):
            run(folder, at_step(2, lambda: signal.raise_signal(signal.SIGTERM)))
    (path,) = folder.iterdir()
    return path


def without(kind, key):
    def spoil(tensors, values):
        del {"tensors": tensors, "values": values, "fit": values["fit"]}[kind][key]

    return spoil


def cut_short(tensors, values):
    tensors["momentum.fc.weight"] = tensors["momentum.fc.weight"][:3].clone()


def of_nothing(tensors, values):
    tensors["momentum.nowhere"] = torch.zeros(3)


def no_dict(tensors, values):
    values["of"] = ["in_resnet14"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "spoil",
    [
        *(without("values", key) for key in ("of", "fit")),
        *(without("fit", key) for key in ("curve", "step", "seconds", "epoch_seconds")),
        *(without("tensors", key) for key in ("sums.loss", "rng.cpu", "loader.left", "model.fc.weight")),
        *(cut_short, of_nothing, no_dict),
    ],
)
def test_a_state_that_lacks_something_or_holds_something_else_is_refused_in_one_line(
    tmp_path, unfinished, spoil
):
    path = Path(shutil.copy(unfinished, tmp_path))
    tensors, values = resume.read(path)
    spoil(tensors, values)
    resume.write(path, tensors, values)
    with pytest.raises(UserError, match=r"^cannot resume from .*; remove it to start over$"):
        run(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_the_state_is_float32_throughout(whole):
    floats = {name: t for name, t in whole[1].items() if torch.is_tensor(t) and t.is_floating_point()}
    assert {tensor.dtype for tensor in floats.values()} == {torch.float32}
    assert any(name.endswith("coefficient.keep") for name in floats)
    assert any(name.endswith("running_var") for name in floats)


@pytest.mark.slow
def test_seeds_one_after_another_are_the_seeds_alone(tmp_path, capsys):
    command = "train in_resnet14 --epochs 1 --device cpu --quiet --seeds"
    assert main([*command.split(), "0,4", "--out", str(tmp_path / "together")]) == 0
    for seed in (0, 4):
        assert main([*command.split(), f"{seed},", "--out", str(tmp_path / f"alone{seed}")]) == 0
        name = f"in_resnet14.digits_digits_1epochs_seed{seed}"
        beside, alone = (zoo.Checkpoint.at(tmp_path / at / name) for at in ("together", f"alone{seed}"))
        assert beside.sha256 == alone.sha256


@pytest.mark.slow
def test_a_terminated_command_keeps_its_training(tmp_path, start_command):
    process = start_command(
        ["train", "preact_resnet14", "--epochs", "500", "--device", "cpu", "--out", str(tmp_path)]
    )
    path = tmp_path / ".preact_resnet14.digits_digits_500epochs_seed0.resume.safetensors"
    patience = time.monotonic() + 120
    while not path.exists() and process.is_alive() and time.monotonic() < patience:
        time.sleep(0.05)
    process.terminate()
    process.join(60)
    assert process.exitcode == 128 + signal.SIGTERM
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    _, values = resume.read(path)
    assert len(values["fit"]["curve"]) >= 1


# What fails.


def spoil(monkeypatch, seeds):
    """Let these seeds start from weights that are no numbers."""
    plain = train.Trainer

    def spoilt(model, loader, recipe):
        if loader.generator.initial_seed() in seeds:
            model.fc.weight.data.fill_(torch.nan)
        return plain(model, loader, recipe)

    monkeypatch.setattr(job, "Trainer", spoilt)


COMMAND = ["train", "in_resnet14", "--epochs", "1", "--seeds", "3", "--device", "cpu", "--quiet", "--out"]
NAME = "in_resnet14.digits_digits_1epochs_seed{}"


@pytest.mark.slow
def test_a_seed_that_diverges_is_recorded_and_the_others_go_on(tmp_path, capsys, monkeypatch):
    spoil(monkeypatch, {1})
    assert main([*COMMAND, str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    record = tmp_path / f"{NAME.format(1)}.failed.json"
    assert out.count("wrote") == 2
    assert err == (
        f"failed: {NAME.format(1)}: training diverged: the loss of epoch 1 is nan; recorded in {record}\n"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == [NAME.format(0), record.name, NAME.format(2)]
    found = json.loads(record.read_text(), parse_constant=pytest.fail)
    assert found["failed"] == "training diverged: the loss of epoch 1 is nan"
    assert (found["seed"], found["recipe"]["epochs"], found["curve"][0]["loss"]) == (1, 1, None)
    ours = [c.seed for c in zoo.checkpoints(tmp_path) if c.folder.parent == tmp_path]
    assert ours == [0, 2]
    # again: it is not tried again, unless its record is removed
    assert main([*COMMAND, str(tmp_path)]) == 0
    assert f"{NAME.format(1)} failed before: training diverged" in capsys.readouterr().err
    record.unlink()
    monkeypatch.undo()
    assert main([*COMMAND, str(tmp_path)]) == 0
    assert (tmp_path / NAME.format(1)).is_dir()


@pytest.mark.slow
def test_if_all_seeds_fail_so_does_the_command(tmp_path, capsys, monkeypatch):
    spoil(monkeypatch, {0, 1, 2})
    for _ in range(2):
        assert main([*COMMAND, str(tmp_path)]) == 1
        assert capsys.readouterr().err.count("failed: ") == 3
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
def test_a_seed_that_learns_nothing_has_failed_and_leaves_no_state(tmp_path):
    recipe = Recipe("still", epochs=9, lr=1e-12, batch_size=449)
    with pytest.raises(TrainingError, match="does not progress: in epochs 1 to 5"):
        train_one("in_resnet14", "digits", recipe, 0, tmp_path)
    assert files(tmp_path) == ["in_resnet14.digits_still_seed0.failed.json"]


@pytest.mark.slow
def test_a_short_training_that_learns_nothing_has_failed_too(tmp_path):
    recipe = Recipe("still", epochs=4, lr=1e-12, batch_size=64)  # 32 steps
    with pytest.raises(TrainingError, match="ended at chance level: in epochs 1 to 4"):
        train_one("in_resnet14", "digits", recipe, 0, tmp_path)
    assert files(tmp_path) == ["in_resnet14.digits_still_seed0.failed.json"]


# What is written beside the weights.


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["lambda", "keep"])
def test_the_interval_reaches_the_model_and_the_curve_is_a_csv(tmp_path, monkeypatch, stored):
    monkeypatch.setattr(train, "check_learning", lambda *_: None)  # this one is to learn nothing
    recipe = Recipe("still", 2, lr=1e-12, batch_size=449, lambda_init=(0.5, 0.6), stored=stored)
    checkpoint = train_one("in_resnet14", "digits", recipe, 0, tmp_path)
    assert len(set(checkpoint.record["lambda"].values())) == 3
    assert all(0.5 <= value <= 0.6 for value in checkpoint.record["lambda"].values())
    assert checkpoint.record["lambda_init"] == [0.5, 0.6]
    with (checkpoint.folder / "curve.csv").open() as file:
        lines = list(csv.DictReader(file))
    blocks = list(checkpoint.record["lambda"])
    assert list(lines[0]) == [
        "epoch", "lr", "loss", "accuracy", "images_per_second", *(f"lambda.{block}" for block in blocks)
    ]  # fmt: skip
    for line, recorded in zip(lines, checkpoint.record["curve"], strict=True):
        assert float(line["loss"]) == recorded["loss"]
        assert {block: float(line[f"lambda.{block}"]) for block in blocks} == recorded["lambda"]


def a_state(path):
    tensors = {"weight": torch.arange(12.0).reshape(3, 4), "step": torch.tensor(7), "empty": torch.empty(0)}
    resume.write(path, tensors, {"of": "network", "fit": {"step": 7}})
    return tensors, {"of": "network", "fit": {"step": 7}}


def test_no_flipped_bit_of_a_state_gives_another_state(tmp_path):
    path = tmp_path / "state"
    tensors, values = a_state(path)
    sound = path.read_bytes()
    refused = 0
    for place in range(0, 8 * len(sound), 37):
        damaged = bytearray(sound)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found, said = resume.read(path)
        except UserError as error:
            refused += "remove it to start over" in str(error) and "\n" not in str(error)
        else:  # such as a space of the padding
            assert said == values
            assert found.keys() == tensors.keys()
            assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert refused > 0.9 * 8 * len(sound) / 37


def test_a_state_from_before_there_were_digests_is_taken(tmp_path):
    path = tmp_path / "state"
    save_file({"weight": torch.ones(2)}, path, {"values": '{"of": "network"}'})
    found, values = resume.read(path)
    assert values == {"of": "network"}
    assert found["weight"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        *(({key: None}, key) for key in ("recipe", "dataset", "data_fingerprint", "model_args", "seed")),
        ({"seed": 1}, "seed"),
        ({"recipe": {"epochs": 2}}, "recipe"),
        ({"plugin": "sha256:1"}, "plugin"),  # the name is now of another architecture
        ({"of_a_later_version": True}, "of_a_later_version"),
        (dict.fromkeys(("recipe", "dataset"), None), "recipe, dataset"),
    ],
)
def test_a_state_that_has_other_settings_or_fewer_or_more_is_not_resumed(
    tmp_path, unfinished, changes, differing
):
    path = Path(shutil.copy(unfinished, tmp_path))
    tensors, values = resume.read(path)
    changed = values["of"] | changes
    values["of"] = {key: value for key, value in changed.items() if value is not None}
    resume.write(path, tensors, values)
    with pytest.raises(UserError, match=f"is an unfinished training with different {differing}; remove it"):
        run(tmp_path)


def test_a_state_without_the_code_of_its_plug_in_is_not_resumed(tmp_path, unfinished, monkeypatch):
    shutil.copy(unfinished, tmp_path)
    monkeypatch.setattr(zoo.MODELS, "code", lambda name: {"plugin": "sha256:1"})
    with pytest.raises(UserError, match="is an unfinished training with different plugin; remove it"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        *(
            ({key: None}, f"another {key}")
            for key in ("recipe", "dataset", "data_fingerprint", "model_args", "seed")
        ),
        ({"seed": 1}, "another seed"),
        ({"recipe": {"epochs": 5}}, "epochs 2 instead of 5"),
        ({"plugin": "sha256:1"}, "another plugin"),
        (dict.fromkeys(("recipe", "dataset"), None), "another recipe, another dataset"),
        ({}, None),
        ({"of_a_later_version": True}, None),  # a record has more than settings
    ],
)
def test_a_failure_counts_only_with_all_settings_of_the_training(tmp_path, unfinished, changes, told):
    _, values = resume.read(unfinished)
    record = {"failed": "it diverged"} | values["of"] | changes
    path = tmp_path / f"{unfinished.name[1:].removesuffix('.resume.safetensors')}.failed.json"
    path.write_text(json.dumps({key: value for key, value in record.items() if value is not None}))
    with pytest.raises(UserError, match="failed before: it diverged" if told is None else told) as refusal:
        run(tmp_path)
    assert isinstance(refusal.value, TrainingError) == (told is None)


def test_a_training_is_not_resumed_with_other_code_of_its_plug_in(tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side, "REPORT_EVERY", 0)

    def with_code(code):
        monkeypatch.setattr(zoo.MODELS, "code", lambda name: code)

    with_code({"plugin": "sha256:1"})
    with pytest.raises(Stopped):
        run(tmp_path, at_step(2, lambda: signal.raise_signal(signal.SIGINT)))
    with_code({"plugin": "sha256:2"})
    with pytest.raises(UserError, match="is an unfinished training with different plugin; remove it"):
        run(tmp_path)
    with_code({"plugin": "sha256:1"})
    assert run(tmp_path).record["plugin"] == "sha256:1"


def test_what_a_training_was_computed_with_is_recorded_and_a_change_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side, "REPORT_EVERY", 0)
    starts, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            if threads == 1:
                with pytest.raises(Stopped):
                    run(tmp_path, at_step(2, lambda: signal.raise_signal(signal.SIGINT)))
            else:
                record = run(tmp_path, resumed=lambda _, start: starts.append(start)).record
    finally:
        torch.set_num_threads(before)
    assert [start.changed for start in starts] == ["threads 2 instead of 1"]
    assert [(one["step"], one["threads"]) for one in record["sessions"]] == [(0, 1), (2, 2)]
    assert {one["torch"] for one in record["sessions"]} == {str(torch.__version__)}
