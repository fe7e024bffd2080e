"""The example scripts run on the bundled checkpoints and print something."""

import os
import subprocess
import sys

import pytest
from support.markdown import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
COMMAND = f"""#!{sys.executable}
import sys
from robust_interp.cli.main import main
sys.exit(main())
"""
# Each script has a process of its own, forked from one that has imported what all of them need.
RUNNER = """
import os, runpy, sys, traceback
import pandas, sklearn.datasets, timm, torchattacks, torchvision

for script in sys.argv[1:]:
    if not os.fork():
        status = 1
        for stream, end in ((1, "out"), (2, "err")):
            file = os.open(f"{os.path.basename(script)}.{end}", os.O_WRONLY | os.O_CREAT)
            os.dup2(file, stream)
        try:
            runpy.run_path(script, run_name="__main__")
            status = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    _, status = os.wait()
    print(os.waitstatus_to_exitcode(status))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Of each script its exit status, and what it wrote to its two streams."""
    place = tmp_path_factory.mktemp("examples")
    command = place / "robust-interp"  # this checkout's, whatever is installed
    command.write_text(COMMAND)
    command.chmod(0o755)
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(place), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    argv = [sys.executable, "-c", RUNNER, *map(str, EXAMPLES)]
    found = subprocess.run(argv, cwd=place, env=environment, capture_output=True, text=True, check=True)
    statuses = map(int, found.stdout.split())
    return {
        script: (status, *((place / f"{script.name}.{end}").read_text() for end in ("out", "err")))
        for script, status in zip(EXAMPLES, statuses, strict=True)
    }


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.name)
def test_an_example_runs(script, outcomes):
    status, out, err = outcomes[script]
    assert status == 0, err
    assert "95 %" in out or "ci_low" in out


def test_examples_are_short():
    assert len(EXAMPLES) == 3
    for script in EXAMPLES:
        assert len(script.read_text().splitlines()) < 40, script.name
