"""The example scripts run on the bundled checkpoints and print something."""

import os
import subprocess
import sys

import pytest

from .markdown import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
COMMAND = f"""#!{sys.executable}
import sys
from robust_interp.cli import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables in which Python and `robust-interp` are those of this checkout, whatever is installed."""
    command = tmp_path_factory.mktemp("bin") / "robust-interp"
    command.write_text(COMMAND)
    command.chmod(0o755)
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(command.parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.name)
def test_an_example_runs(script, environment, tmp_path):
    command = [sys.executable, str(script)]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "95 %" in found.stdout or "ci_low" in found.stdout


def test_examples_are_short():
    assert len(EXAMPLES) == 3
    for script in EXAMPLES:
        assert len(script.read_text().splitlines()) < 40, script.name
