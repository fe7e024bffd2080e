"""What `import robust_interp` adds to timm: our networks, wherever it is run, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import json, timm
before = set(timm.list_models())
import robust_interp
added = set(timm.list_models()) - before
for name in added:
    timm.create_model(name, pretrained=False)
print(json.dumps(sorted(added)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("here", ["in a clone", "elsewhere"])
def test_it_adds_the_same_names_everywhere_and_each_can_be_built(here, tmp_path):
    import robust_interp
    from robust_interp.models import ARCHITECTURES

    clone = Path(robust_interp.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-Wignore", "-c", f"import sys; sys.path.insert(0, {str(clone)!r})\n{PROBE}"],
        cwd=clone if here == "in a clone" else tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == sorted(ARCHITECTURES)
