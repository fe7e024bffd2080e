"""robust-interp data: what is kept on disk."""

import numpy as np
import pytest
from support.messages import one_line

from robust_interp.corruptions.cache import Cache

KEY = {"dataset": "0" * 64, "corruption": "fog", "severity": 1, "start": 0}


def test_the_size_of_what_is_kept_is_shown_and_can_be_cleared(command, tmp_path):
    Cache(tmp_path / "kept").put(KEY, np.zeros((1024, 1, 32, 32), np.uint8))
    status, out, _ = command("data", "digits", "--cache", tmp_path / "kept")
    assert status == 0
    assert f"generated corruptions: 1.0 MiB in {tmp_path / 'kept'}; --clear-cache removes them" in out
    status, out, _ = command("data", "--clear-cache", "--cache", tmp_path / "kept")
    assert (status, out) == (0, f"removed 1.0 MiB of generated corruptions from {tmp_path / 'kept'}\n")
    assert "0.0 MiB" in command("data", "digits", "--cache", tmp_path / "kept")[1]


def test_without_a_cache_there_is_nothing_to_clear(command):
    assert "not kept on disk" in command("data", "digits", "--cache", "off")[1]
    status, _, err = command("data", "--clear-cache", "--cache", "off")
    assert status != 0
    assert "there is nothing to clear" in err


@pytest.mark.parametrize("more", ["digits", "--download"])
def test_clearing_the_cache_leaves_no_other_wish_unheard(command, tmp_path, more):
    Cache(tmp_path / "kept").put(KEY, np.zeros((1, 1, 32, 32), np.uint8))
    status, out, err = command("data", more, "--clear-cache", "--cache", tmp_path / "kept")
    assert (status, out) == (1, "")
    one_line(err, "without names and --download")
    assert list((tmp_path / "kept").rglob("*.images"))


@pytest.mark.slow
def test_a_second_run_finds_the_images_of_the_first(command, tmp_path):
    options = ["--models", "in_resnet20", "--seeds", "1", "--attacks", "none", "--n", "8", "--quiet"]
    options += ["--corruptions", "fog(severity=2)", "--cache", tmp_path / "kept"]
    assert command("bench", *options, "--out", tmp_path / "one")[0] == 0
    (path,) = (tmp_path / "kept").rglob("*.images")
    made = path.stat().st_ino
    assert command("bench", *options, "--out", tmp_path / "two")[0] == 0
    assert path.stat().st_ino == made
    assert (tmp_path / "one/leaderboard.csv").read_bytes() == (tmp_path / "two/leaderboard.csv").read_bytes()
