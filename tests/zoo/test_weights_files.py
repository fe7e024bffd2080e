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
from safetensors.torch import load_file
from torch import nn

from robust_interp import zoo
from robust_interp.core.errors import UserError
from robust_interp.zoo.weights_files import read_state

pytestmark = pytest.mark.usefixtures("elsewhere")

SMALL = "--n 10 --attacks none --corruptions none --device cpu --quiet"


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


def test_one_of_several_state_dicts_is_named_after_the_file(tmp_path):
    path = tmp_path / "last.pth.tar"
    states = {"state_dict": network(1).state_dict(), "state_dict_ema": network(2).state_dict()}
    torch.save(states | {"args": argparse.Namespace(lr=0.1)}, path)
    for seed, entry in ((1, "state_dict"), (2, "state_dict_ema")):
        model = network(3)
        zoo.load_weights(model, tmp_path / f"last.pth.tar:{entry}")
        assert same(model, network(seed))
    with pytest.raises(UserError, match=f"several state dicts .* --checkpoint {path}:state_dict"):
        zoo.load_weights(model, path)
    with pytest.raises(UserError, match="has no entry 'ema': it contains a dict with state_dict, "):
        zoo.load_weights(model, tmp_path / "last.pth.tar:ema")


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


@pytest.mark.parametrize("content", [[1, 2], {"a": types.SimpleNamespace(x=1)}, slice(3)])
def test_the_refusal_of_a_pickle_gives_no_advice_to_load_it_unsafely(tmp_path, recwarn, content):
    path = tmp_path / "w.pt"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(UserError) as refusal:
        read_state(path)
    assert str(refusal.value).startswith((f"cannot read {path}: it is a pickle", f"{path} contains"))
    assert "weights_only" not in str(refusal.value)
    assert not len(recwarn)
