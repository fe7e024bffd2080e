"""The hash in the tables is that of the weights file, whatever its format."""

import hashlib
import shutil

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

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
