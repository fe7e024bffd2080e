"""The example scripts run on the bundled checkpoints and print something."""

import os
import subprocess
import sys

import pytest

from .markdown import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.name)
def test_an_example_runs(script, tmp_path):
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    found = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert "eps" in found.stdout or "%" in found.stdout


def test_examples_are_short():
    assert len(EXAMPLES) == 3
    for script in EXAMPLES:
        assert len(script.read_text().splitlines()) < 40, script.name
