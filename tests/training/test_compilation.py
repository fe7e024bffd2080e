"""The compiled training step: the losses of the plain step, its record, and no compiler at all."""

import json

import numpy as np
import pytest
import torch
from support.prerequisites import missing
from support.training import train_one

from robust_interp import data, zoo
from robust_interp.cli.main import main
from robust_interp.core.compiler import why_not
from robust_interp.models.network import Block
from robust_interp.training import compilation, job, train
from robust_interp.training.loader import Loader
from robust_interp.training.recipe import Recipe
from robust_interp.training.trainer import Trainer

DIGITS = data.DATASETS["digits"]
TWENTY = Recipe("twenty", epochs=20, lr=0.01, steps=(), batch_size=8).filled(DIGITS)


def losses(compiled):
    """Of 20 steps on eight images, in float64: in float32 rounding grows to a percent within ten steps."""
    digits = data.load("digits", "train")
    torch.manual_seed(0)
    model = zoo.create("in_resnet14", num_classes=10, in_chans=1).double()
    names = list(model.state_dict())
    if compiled:
        compilation.compile_blocks(model)
    assert list(model.state_dict()) == names
    trainer = Trainer(
        model.train(), Loader(digits.images[:8], digits.labels[:8], TWENTY, False, 0, "cpu"), TWENTY
    )
    trainer.loss_sum = trainer.loss_sum.double()
    images, labels = trainer.loader.cut(trainer.loader.draw())
    found = []
    for _ in range(20):
        trainer.loss_sum.zero_()
        trainer.train_step(images.double(), labels)
        found.append(trainer.loss_sum.item() / 8)
    return found


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_first_twenty_losses_are_those_of_the_plain_step():
    if reason := why_not():
        missing(f"torch.compile does not work here: {reason}")
    torch._dynamo.utils.counters.clear()
    found = losses(compiled=True)
    # an input, a downsampling and a damped block of each width at most: the depth does not count
    assert 0 < torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 6
    np.testing.assert_allclose(found, losses(compiled=False), rtol=1e-6)
    assert found[-1] < 0.5 * found[0]


def test_blocks_are_compiled_where_there_are_some_else_the_whole(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **_: seen.append(self))
    ours, other = zoo.create("in_resnet14", num_classes=10), torch.nn.Sequential(torch.nn.Linear(2, 2))
    compilation.compile_blocks(ours)
    assert seen == [module for module in ours.modules() if isinstance(module, Block)]
    assert len(seen) == 6
    compilation.compile_blocks(other)
    assert seen[6:] == [other]


@pytest.mark.slow
def test_every_architecture_and_the_last_batch_are_compiled(tmp_path, monkeypatch):
    compile_module = torch.nn.Module.compile
    graphs = []

    def counting(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(
        torch.nn.Module,
        "compile",
        lambda self, dynamic: compile_module(self, dynamic=dynamic, backend=counting),
    )
    short = Recipe("short", epochs=1, batch_size=1000)  # 1347 digits: batches of 1000 and 347
    both = [job.Training(name, short, 0) for name in ("in_resnet14", "preact_resnet14")]
    train.train_together(both, "digits", tmp_path, compiled=True)
    # channels 16-16, 16-32, 32-32, 32-64, 64-64 without λ and 16-16, 32-32, 64-64 with it; two sizes of batch
    assert len(graphs) == (5 + 3) * 2


@pytest.mark.slow
def test_what_was_compiled_is_recorded_and_stored_as_a_plain_network(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "compile_blocks", lambda model: seen.append(type(model).__name__))
    seen = []
    short = Recipe("short", epochs=1, batch_size=1347)
    checkpoint = train_one("in_resnet14", "digits", short, 0, tmp_path, compiled=True)
    assert checkpoint.record["compiled"] is True
    assert len(seen) == 1  # for training, and not for the test split
    assert train_one("in_resnet14", "digits", short, 1, tmp_path).record["compiled"] is False


@pytest.mark.slow
def test_without_a_compiler_it_is_trained_all_the_same_with_a_note(tmp_path, monkeypatch, capsys):
    def broken(function):
        def fail(*_):
            raise RuntimeError("no C++ compiler\nwas found")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    recipe = tmp_path / "one.toml"
    recipe.write_text("epochs = 1\nbatch_size = 1347\n")
    command = ["train", "preact_resnet14", "--recipe", str(recipe), "--seeds", "1", "--compile", "--quiet"]
    assert main([*command, "--out", str(tmp_path / "zoo")]) == 0
    note = capsys.readouterr().err
    assert "--compile is left out, torch.compile does not work here: no C++ compiler was found" in " ".join(
        note.split()
    )
    (folder,) = (tmp_path / "zoo").iterdir()
    assert json.loads((folder / "train.json").read_text())["compiled"] is False
