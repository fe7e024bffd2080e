"""timm's own model tests on our names, with the timm that RobustBench pins and with the newest.

timm ships them in its source distribution only, which pip fetches at test time. Without it these tests
are skipped; where the environment variable CI is set, they fail instead.

`TIMM_SUITE_NAMES="in_resnet110 preact_resnet110"` tests other names, `TIMM_SUITE_NAMES=all` every one.
"""

import os
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.prerequisites import missing

import robust_interp
from robust_interp.models import ARCHITECTURES

PINNED = "1.0.9"  # by robustbench 1.1.1
TESTS = Path(__file__).parent
PACKAGE = Path(robust_interp.__file__).parents[1]  # the one that is tested here, installed or not
ALL = sorted(ARCHITECTURES)
# Each family at its smallest; deeper ones have the same blocks.
SMALL = [name for name in ALL if "14" in name or "20_4x16d" in name] + ["in_resnet20"]
# With the other timm both families, without λ, with, and gated: a merge itself knows no timm.
FEW = ["preact_resnet14", "in_resnet14_gating_sig", "lambda_in_resnext20_4x16d"]
# What both versions run on each name; newer ones run more.
EXPECTED = {
    "test_model_forward",
    "test_model_backward",
    "test_model_default_cfgs",
    "test_model_forward_torchscript",
    "test_model_forward_features",
    "test_model_forward_intermediates",
    "test_model_forward_intermediates_features",
    "test_model_forward_fx",
    "test_model_backward_fx",
    "test_model_forward_fx_torchscript",
}


@dataclass
class Timm:
    version: str
    source: Path


def names(usual: list[str]) -> list[str]:
    chosen = os.environ.get("TIMM_SUITE_NAMES", "").split()
    return ALL if chosen == ["all"] else chosen or usual


def fetch(requirement: str, folder: Path) -> Timm:
    """timm's source distribution, unpacked."""
    options = ["--quiet", "--disable-pip-version-check", "--retries=1", "--no-deps", "--no-binary=:all:"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, f"--dest={folder}", requirement],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        complaint = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        missing(f"pip has no source of {requirement}: {complaint}")
    (archive,) = folder.glob("timm-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz")
    return Timm(source.name.removeprefix("timm-"), source)


def run(timm: Timm, names: list[str], folder: Path, path: list[Path]) -> list[ElementTree.Element]:
    """timm's tests/test_models.py on these names: its <testcase> elements."""
    # A copy outside the source distribution, whose timm would otherwise be imported.
    suite = folder / "suite" / "test_models.py"
    suite.parent.mkdir()
    suite.write_bytes((timm.source / "tests" / "test_models.py").read_bytes())
    env = {key: value for key, value in os.environ.items() if key != "GITHUB_ACTIONS"}  # it leaves tests out
    env |= {
        "PYTHONPATH": os.pathsep.join(map(str, [*path, PACKAGE, TESTS])),
        "TIMM_SUITE_NAMES": " ".join(names),
        "TIMM_SUITE_VERSION": timm.version,
        "OMP_NUM_THREADS": "1",  # such small models gain nothing from more
    }
    report = folder / "report.xml"
    options = ["-q", "-Wignore", "-pno:cacheprovider", "-ptimm_suite_plugin", f"--junitxml={report}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, suite.name],
        cwd=suite.parent,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    cases = list(ElementTree.parse(report).iter("testcase"))
    assert done.returncode == 0, done.stdout[-20_000:]
    return cases


def check(cases: list[ElementTree.Element], names: list[str]) -> None:
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    assert not skipped
    runs = Counter(case.get("name").split("[")[0] for case in cases)
    too_few = {test: runs[test] for test in EXPECTED if runs[test] < len(names)}
    assert not too_few


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requirement", "usual"),
    [
        pytest.param(f"timm=={PINNED}", FEW, id="pinned"),
        pytest.param("timm", SMALL, id="newest", marks=pytest.mark.exhaustive),
    ],
)
def test_timms_own_tests_pass_on_our_names(requirement, usual, tmp_path):
    timm, chosen = fetch(requirement, tmp_path), names(usual)
    # The source distribution holds timm itself, so no second environment is needed for another version.
    path = [] if timm.version == version("timm") else [timm.source]
    check(run(timm, chosen, tmp_path, path), chosen)
