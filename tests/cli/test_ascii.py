"""Commands whose output goes to a terminal or pipe without Unicode."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.hand_made import results_beyond_ascii
from support.messages import one_line

from robust_interp import zoo
from robust_interp.cli.main import main

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def results(tmp_path):
    return results_beyond_ascii(tmp_path / "results")


ASCII = [
    ["--help"],
    ["bench", "--help"],
    ["train", "--help"],
    ["leaderboard", "--help"],
    ["leaderboard", "compare", "--help"],
    ["leaderboard", "results"],
    *(["leaderboard", "results", "--format", form] for form in ("csv", "markdown", "latex", "json")),
    ["leaderboard", "compare", "λ-net", "net"],
    ["leaderboard", "compare", "λ-net", "µ-net"],
    ["models"],
    ["bench", "--models", "λ-net"],
    ["bench", "--attacks", "λ"],
]


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize("argv", ASCII, ids=" ".join)
def test_a_terminal_without_unicode_ends_no_command(monkeypatch, argv):
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding="ascii") for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    try:
        status = main(argv)
    except SystemExit as stop:
        status = stop.code
    for stream in streams.values():
        stream.flush()
    shown = {name: stream.buffer.getvalue().decode("ascii") for name, stream in streams.items()}
    monkeypatch.undo()
    if (argv[0] == "bench" and "--help" not in argv) or "µ-net" in argv:
        assert (status, shown["stdout"]) == (1, "")
        one_line(shown["stderr"], "robust-interp: ")
    else:
        assert status == 0
        assert shown["stdout"]
        assert "Traceback" not in shown["stderr"]


@pytest.mark.slow
def test_a_real_process_prints_to_ascii(results):
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(zoo.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "robust_interp", "leaderboard", str(results)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "net" in done.stdout
