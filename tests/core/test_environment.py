"""What is written down of the machine and the software: against facts that are made up or asked elsewhere."""

import json
import os
import subprocess
from importlib.metadata import version

from PIL import features

from robust_interp.core import environment

CPUINFO = """processor\t: 0
model name\t: Test CPU @ 2.5 GHz
flags\t\t: fpu avx2 avx512f amx_tile

processor\t: 1
model name\t: Test CPU @ 2.5 GHz
flags\t\t: fpu avx2 avx512f amx_tile
"""


def test_it_is_json_and_says_what_ran_with_what():
    found = json.loads(json.dumps(environment.describe(["robust-interp", "bench", "--out", "a b"], {"n": 3})))
    assert found["command"] == "robust-interp bench --out 'a b'"
    assert found["packages"]["torch"] == version("torch")
    assert "no_such_package" not in found["packages"]
    assert found["n"] == 3
    assert found["packages"]["pillow"] == version("pillow")
    assert (
        features.version("jpg") in found["libjpeg"] or features.version("libjpeg_turbo") in found["libjpeg"]
    )
    assert found["date"].endswith("+00:00")


def test_the_cpu_is_told_by_linux(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(CPUINFO)
    assert environment.cpu(tmp_path) == {
        "model": "Test CPU @ 2.5 GHz",
        "features": ["avx2", "avx512f", "amx_tile"],
    }


def test_elsewhere_it_is_what_python_knows(tmp_path):
    assert set(environment.cpu(tmp_path)) == {"model"}


def test_the_commit_has_a_plus_where_files_differ_from_it(tmp_path):
    def git(*arguments):
        own = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *own, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        )

    assert environment.git_state(tmp_path) is None, "no repository"
    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", ".")
    git("commit", "--quiet", "--message=one")
    commit = git("rev-parse", "HEAD").stdout[:12]
    assert environment.git_state(tmp_path) == commit
    other = tmp_path.parent / os.fsdecode(b"Caf\xe9")  # not UTF-8
    tmp_path.rename(other)
    assert environment.git_state(other) == commit
    other.rename(tmp_path)
    (tmp_path / "file").write_text("two")
    assert environment.git_state(tmp_path) == f"{commit}+"
    (tmp_path / "inside").mkdir()
    assert environment.git_state(tmp_path / "inside") is None, "what lies in a repository is not of it"
