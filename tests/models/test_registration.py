"""What `import robust_interp` adds to timm: our networks, wherever and in whatever order it is imported."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support import fresh

import robust_interp
from robust_interp.models import ARCHITECTURES

CLONE = Path(robust_interp.__file__).parents[1]
ADDED = """
    import json, timm, torch
    before = set(timm.list_models())
    import robust_interp
    added = set(timm.list_models()) - before
    with torch.device("meta"):
        for name in added:
            timm.create_model(name, pretrained=False)
    print(json.dumps(sorted(added)))
"""
ORDERS = {
    "robust_interp before timm": """
        import robust_interp, sys
        assert "timm" not in sys.modules
        import timm
        timm.create_model("in_resnet20", device="meta")
    """,
    "timm before robust_interp": """
        import timm, robust_interp
        timm.create_model("in_resnext20_4x16d", device="meta")
    """,
    "models first": """
        import warnings
        warnings.simplefilter("error", UserWarning)  # timm's, for a name registered twice
        from robust_interp.models.in_resnet import in_resnet14
        in_resnet14(device="meta")
    """,
}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_it_adds_the_same_names_everywhere_and_each_can_be_built(tmp_path):
    for status, said in fresh.outcomes(
        [(textwrap.dedent(ADDED), at, [str(CLONE)]) for at in (CLONE, tmp_path)]
    ):
        assert status == 0, said[-3000:]
        assert json.loads(said.splitlines()[-1]) == sorted(ARCHITECTURES)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    programs = [(textwrap.dedent(code), elsewhere, [str(CLONE)]) for code in ORDERS.values()]
    return dict(zip(ORDERS, fresh.outcomes(programs), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_our_networks_can_be_built_whatever_is_imported_first(order, outcomes):
    status, said = outcomes[order]
    assert status == 0, said[-3000:]


def test_importing_the_package_imports_nothing_that_takes_long():
    code = "import sys, robust_interp; sys.exit(bool({'torch', 'timm', 'numpy'} & set(sys.modules)))"
    assert not subprocess.run([sys.executable, "-c", code], check=False).returncode
