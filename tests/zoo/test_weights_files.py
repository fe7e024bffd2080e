"""Weights files: their hash in the tables, and what may stand beside the weights or be missing."""

import argparse
import hashlib
import os
import pickle
import shutil
import types

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_model
from torch import nn

from robust_interp import zoo
from robust_interp.core.errors import UserError
from robust_interp.zoo.weights_files import read_state

pytestmark = pytest.mark.usefixtures("elsewhere")

SMALL = "--n 10 --attacks none --corruptions none --device cpu --quiet"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_the_hash_of_a_weights_file_is_that_of_the_file(command, tiny_zoo, tmp_path, suffix):
    source = tiny_zoo / "in_resnet14.digits_none_seed1" / "model.safetensors"
    path = tmp_path / f"mine{suffix}"
    if suffix == ".pth":
        torch.save({"state_dict": load_file(source)}, path)
    else:
        shutil.copy(source, path)
    assert command("bench", "--models", "in_resnet14", "--checkpoint", path, *SMALL.split())[0] == 0
    found = pd.read_csv(tmp_path / "results" / "results.csv")["weights_sha256"]
    assert set(found) == {hashlib.sha256(path.read_bytes()).hexdigest()}


class Options:
    """What a training script may keep beside its weights."""

    def __init__(self):
        self.lr = 0.1

    def __setstate__(self, state):
        raise AssertionError("unpickled")


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))


def same(model, other):
    own, others = model.state_dict(), other.state_dict()
    return own.keys() == others.keys() and all(torch.equal(own[key], others[key]) for key in own)


BESIDE = {
    "options": {"args": argparse.Namespace(lr=0.1, opt="sgd")},
    "NumPy's numbers": {"metric": np.float64(93.1), "epoch": np.int64(3)},
    "an object of the script": {"config": Options()},
    "a list of all": {"log": [argparse.Namespace(lr=0.1), {"best": np.float32(1)}, Options()]},
    "a namespace": {"args": types.SimpleNamespace(lr=0.1)},
}


@pytest.mark.parametrize("beside", BESIDE)
def test_what_a_training_script_keeps_beside_the_weights_is_not_unpickled(tmp_path, beside):
    content = {"arch": "net", "state_dict": network(1).state_dict(), "optimizer": {}, **BESIDE[beside]}
    torch.save(content, tmp_path / "last.pth.tar")
    model = network(2)
    zoo.load_weights(model, tmp_path / "last.pth.tar")
    assert same(model, network(1))


@pytest.mark.parametrize("zipped", [True, False])
def test_of_several_state_dicts_one_is_taken_and_said_and_another_can_be(tmp_path, zipped):
    """As timm's train.py saves them, in the format of today and in that from before torch 1.6."""
    path = tmp_path / "last.pth.tar"
    states = {"state_dict": network(1).state_dict(), "state_dict_ema": network(2).state_dict()}
    beside = {"arch": "resnet18", "epoch": 3, "optimizer": {}, "version": 2, "metric": np.float64(93.1)}
    content = states | beside | {"args": argparse.Namespace(lr=0.1)}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    for seed, key in ((1, None), (1, "state_dict"), (2, "state_dict_ema")):
        model = network(3)
        notes = zoo.load_weights(model, path, key).notes
        assert same(model, network(seed))
        assert len(notes) == (key is None)
    (note,) = zoo.load_weights(model, path).notes
    assert "state_dict is measured; to take others, use --weights-key state_dict_ema" in note
    with pytest.raises(UserError, match="has no weights under 'ema': it contains a dict with"):
        zoo.load_weights(model, path, "ema")


@pytest.mark.slow
def test_the_key_of_weights_is_an_option(command, tiny_zoo, tmp_path):
    states = [
        load_file(tiny_zoo / f"in_resnet14.digits_none_seed{seed}/model.safetensors") for seed in (0, 1)
    ]
    torch.save({"state_dict": states[0], "state_dict_ema": states[1]}, "last.pth.tar")
    found = []
    for more in ("", "--weights-key state_dict_ema"):
        line = f"bench --models in_resnet14 --checkpoint last.pth.tar {more} {SMALL.replace('10', '100', 1)}"
        status, _, err = command(*line.split())
        assert status == 0
        assert ("state_dict is measured; to take others" in err) is (not more)
        found += [pd.read_csv("results/results.csv")["accuracy"][0]]
    assert found[0] != found[1]
    status, _, err = command("bench", "--models", "all", "--weights-key", "ema", *SMALL.split())
    assert (status, "weights_key cannot be used with models from the zoo" in err) == (1, True)


def test_lightnings_checkpoint_is_read_whatever_is_beside_the_model(tmp_path):
    """Its state dict is that of the whole module, a loss with weights and a metric among it."""
    module = nn.ModuleDict({"model": network(1), "criterion": nn.Linear(1, 1), "metric": nn.BatchNorm1d(1)})
    content = {
        "epoch": 3,
        "global_step": 100,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": module.state_dict(),
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {"ModelCheckpoint{}": {"best_model_path": tmp_path / "best.ckpt"}},
        "optimizer_states": [torch.optim.SGD(module.parameters(), 0.1).state_dict()],
        "hparams_name": "kwargs",
        "hyper_parameters": {"args": argparse.Namespace(lr=0.1), "lr": np.float32(0.1)},
    }
    torch.save(content, tmp_path / "last.ckpt")
    model = network(2)
    (note,) = zoo.load_weights(model, tmp_path / "last.ckpt").notes
    assert "the weights under model are measured; 7 tensors beside them are left out" in note
    assert same(model, network(1))


def test_of_two_models_in_one_state_dict_the_key_says_which(tmp_path):
    module = nn.ModuleDict({"student": network(1), "teacher": network(2)})
    torch.save({"state_dict": module.state_dict()}, tmp_path / "w.ckpt")
    for seed, key in ((1, "student"), (2, "teacher")):
        model = network(3)
        zoo.load_weights(model, tmp_path / "w.ckpt", key)
        assert same(model, network(seed))
    with pytest.raises(
        UserError, match="several models, student, teacher: name one with --weights-key student"
    ):
        zoo.load_weights(model, tmp_path / "w.ckpt")


def test_a_robust_model_saved_with_its_attacker_and_normaliser_is_read(tmp_path):
    """As the robustness library saves them: DataParallel around a module that holds the network twice."""
    normaliser = nn.Module()
    normaliser.register_buffer("new_mean", torch.tensor([0.25]))
    normaliser.register_buffer("new_std", torch.tensor([0.5]))
    net = network(1)
    attacker = nn.ModuleDict({"model": net, "normalize": normaliser})
    module = nn.ModuleDict({"model": net, "normalizer": normaliser, "attacker": attacker})
    torch.save({"model": nn.DataParallel(module).state_dict(), "schedule": None}, tmp_path / "w.pt")
    model = network(2)
    found = zoo.load_weights(model, tmp_path / "w.pt")
    assert same(model, network(1))
    assert found.normalisation == ([0.25], [0.5])


class Parts(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.backbone, self.head = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), nn.Linear(3, 2)

    def forward(self, images):
        return self.head(self.backbone(images))


@pytest.mark.slow
def test_a_wrapper_in_the_middle_of_a_model_is_no_part_of_the_names(tmp_path):
    def compiled(net):
        net.backbone = torch.compile(net.backbone)
        return net

    def parallel(net):
        net.backbone = nn.DataParallel(net.backbone)
        return net

    wraps = (lambda net: net, compiled, parallel, lambda net: nn.DataParallel(compiled(parallel(net))))
    for wrap in wraps:
        torch.save(wrap(Parts(1)).state_dict(), tmp_path / "w.pt")
        for other in wraps:
            model = other(Parts(2))
            zoo.load_weights(model, tmp_path / "w.pt")
            inner = model.module if isinstance(model, nn.DataParallel) else model
            assert torch.equal(inner.head.weight, Parts(1).head.weight)
            assert torch.equal(next(inner.backbone.parameters()), Parts(1).backbone[1].weight)


def test_a_part_that_is_called_like_a_wrapper_keeps_its_name(tmp_path):
    def named(seed):
        torch.manual_seed(seed)
        both = {"module": nn.Linear(2, 2), "_orig_mod": nn.Linear(2, 2)}
        return nn.ModuleDict({"a": nn.ModuleDict(both), "b": nn.Linear(2, 2)})

    for state in (named(1).state_dict(), nn.DataParallel(named(1)).state_dict()):
        torch.save(state, tmp_path / "w.pt")
        model = named(2)
        zoo.load_weights(model, tmp_path / "w.pt")
        assert same(model, named(1))


class Tied(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.head = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("prefix", ["", "model."])
def test_weights_under_two_names_may_be_in_the_file_once(tmp_path, prefix):
    save_model(nn.ModuleDict({"model": Tied(1)}) if prefix else Tied(1), tmp_path / "w.safetensors")
    assert len(load_file(tmp_path / "w.safetensors")) == 2
    model = Tied(2)
    zoo.load_weights(model, tmp_path / "w.safetensors")
    assert same(model, Tied(1))
    assert model.head.weight is model.embed.weight
    untied = Tied(3)
    untied.head.weight = nn.Parameter(torch.zeros(4, 4))
    with pytest.raises(UserError, match="1 keys missing"):
        zoo.load_weights(untied, tmp_path / "w.safetensors")


def test_what_calls_the_system_is_refused_and_not_run(tmp_path):
    class Calls:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    torch.save({"state_dict": network(1).state_dict(), "args": Calls()}, tmp_path / "w.pth")
    model = network(2)
    with pytest.raises(UserError, match="contains a pickled"):
        zoo.load_weights(model, tmp_path / "w.pth")
    assert not (tmp_path / "made").exists()
    assert same(model, network(2))


def test_counters_of_batch_norm_may_be_missing(tmp_path):
    state = {key: value for key, value in network(1).state_dict().items() if "num_batches" not in key}
    torch.save(state, tmp_path / "old.pth")
    model = network(2)
    zoo.load_weights(model, tmp_path / "old.pth")
    assert same(model, network(1))


@pytest.mark.parametrize("content", [b"hello world\n", b"abc", b"", b"\0" * 100, bytes(range(100, 228))])
def test_a_file_that_is_no_weights_file_is_called_that(tmp_path, content):
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(UserError, match=r"w.pt (is neither a .safetensors file nor one that|is empty)"):
        read_state(tmp_path / "w.pt")


@pytest.mark.parametrize(
    "content", [b"\x80\x02", b"\x80\x02K", b"\x80\x02h\x07.", b"\x80\x02X\x01\0\0\0\xff."]
)
def test_a_damaged_file_is_called_that(tmp_path, content):
    """An end, a memo that is not there, text that is none: torch's loader says little, or only a number."""
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read .*w.pt: it is damaged or incomplete \("):
        read_state(tmp_path / "w.pt")


@pytest.mark.parametrize("content", [[1, 2], {"a": types.SimpleNamespace(x=1)}, slice(3)])
def test_the_refusal_of_a_pickle_gives_no_advice_to_load_it_unsafely(tmp_path, recwarn, content):
    path = tmp_path / "w.pt"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(UserError) as refusal:
        read_state(path)
    assert str(refusal.value).startswith((f"cannot read {path}: it is a pickle", f"{path} contains"))
    assert "weights_only" not in str(refusal.value)
    assert not len(recwarn)
