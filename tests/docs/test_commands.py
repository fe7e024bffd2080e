"""Every command and Python block of the README and of docs/ is run on the bundled digits, on small n."""

import argparse
import csv
import re
import shlex
import shutil
import sys

import numpy as np
import pytest
from support.markdown import BLOCKS, ROOT, tables

from robust_interp import data
from robust_interp.cli.main import main
from robust_interp.results.columns import OF_IMAGES, OF_PRECISION, ON_REQUEST

ATTACKS = "fgsm,pgd(steps=2)"
BOTH = "in_resnet20,preact_resnet20"
BASE = shlex.split(f"bench --models {BOTH} --seeds 2 --n 6 --eps 16 --attacks '{ATTACKS}' --quiet")
TINY = shlex.split(
    "bench --models in_resnet20 --seeds 2 --n 6 --eps 16 --attacks fgsm --corruptions none --quiet"
)
FAILED_AUDIT = 3
COMMANDS = [(block, argv) for block in BLOCKS for argv in block.commands()]
PYTHON = [block for block in BLOCKS if block.language == "python" and block.why_not is None]


# --- how a command is made small ----------------------------------------------------------------------


def put(argv, option, value=None):
    """The command with an option set, in place of what it says."""
    argv = list(argv)
    if option in argv:
        at = argv.index(option)
        takes = at + 1 < len(argv) and not argv[at + 1].startswith("--")
        del argv[at : at + (2 if takes else 1)]
    return [*argv, option] if value is None else [*argv, option, value]


def given(argv, option, usual=""):
    return argv[argv.index(option) + 1] if option in argv else usual


def few_steps(specs):
    specs = re.sub(r"apgd_ce(?!\()", "apgd_ce(steps=3)", specs)
    return re.sub(r"(steps|queries|restarts)=\d+", r"\1=2", specs)


def small(argv):
    """A command on digits, with few images, seeds and steps, that writes where no other command reads."""
    argv = [re.sub("^cifar10_results$", "results", word) for word in argv]
    name = argv[0]
    if name in ("bench", "audit", "train") and "--dataset" in argv:
        argv = put(argv, "--dataset", "digits")
    if name == "bench":
        return small_bench(argv)
    if name == "audit":
        argv = put(put(put(argv, "--n", "6"), "--eps", "16"), "--seeds", "1")
        argv = put(put(put(argv, "--more", "2"), "--attack", "pgd(steps=2)"), "--out", "measured")
        argv = put(argv, "--strongest", few_steps(given(argv, "--strongest", "apgd_ce")))
        return put(put(argv, "--black-box", "square(queries=2)"), "--quiet")
    if name == "train":
        argv = put(argv, "--models", "in_resnet14")
        return put(put(put(put(argv, "--seeds", "1"), "--epochs", "1"), "--out", "trained"), "--quiet")
    if name == "sweep":
        return put(argv, "--dry-run")
    if argv[:2] == ["plot", "coefficients"]:
        return put(argv, "--models", "in_resnet20.digits_digits_seed0")
    if argv[:2] == ["plot", "landscape"]:
        return put(put(put(argv, "--models", "in_resnet20"), "--sample", "3"), "--points", "3")
    if argv[:2] == ["plot", "curve"]:
        return [re.sub(r"^pgd$", "fgsm", word) for word in argv]
    if name == "stability":
        argv = put(put(argv, "--models", "in_resnet20"), "--seeds", "1")
        return [*argv, "--n", "1", "--growth-n", "2"]
    if name == "report":
        return ["tiny" if word == "results" else word for word in argv]
    if name == "verify":
        return [*argv, "--seeds", "1", "--out", "measured"]
    if name == "leaderboard":
        argv = [re.sub(r"resnet20x\d\b", "resnet20x2", word) for word in argv]
        return [re.sub(r"\bpgd_(16|\*)", r"fgsm_\1", word) for word in argv]
    return argv


def small_bench(argv):
    models, attacks = given(argv, "--models", "all"), given(argv, "--attacks", ATTACKS)
    models = BOTH if models == "all" else models
    of_the_zoo = any(":" not in model for model in models.split(","))
    if "--dry-run" in argv:
        argv, models = put(argv, "--seeds", "1"), "in_resnet20"
    elif of_the_zoo:
        argv = put(argv, "--seeds", "1" if given(argv, "--seeds") == "1" else "2")
    else:
        argv, attacks = put(argv, "--corruptions", "none"), "fgsm"
    argv = put(put(argv, "--models", models), "--attacks", few_steps(attacks))
    if "--strong" in argv:
        argv = put(put(argv, "--strong", few_steps(given(argv, "--strong"))), "--strong-n", "4")
    return put(put(put(put(argv, "--n", "6"), "--eps", "16"), "--out", "measured"), "--quiet")


def test_a_command_is_made_small():
    made = small(shlex.split("bench --models all --dataset cifar10 --n 1000"))
    assert (given(made, "--models"), given(made, "--dataset"), given(made, "--n")) == (BOTH, "digits", "6")
    assert few_steps("pgd(alpha=eps/4,steps=40,restarts=5),apgd_ce") == (
        "pgd(alpha=eps/4,steps=2,restarts=2),apgd_ce(steps=2)"
    )


# --- where they run -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with results, a model, weights, a plug-in and the leaderboards that the pages name."""
    import timm
    from safetensors.torch import save_file

    from robust_interp.plugins import REGISTRIES

    place = tmp_path_factory.mktemp("workplace")
    registered = {
        kind: {name: dict(held) for name, held in vars(registry).items() if isinstance(held, dict)}
        for kind, registry in REGISTRIES.items()
    }
    path = list(sys.path)
    (place / "leaderboards").symlink_to(ROOT / "leaderboards")
    (place / "my_zoo").symlink_to(ROOT / "model_zoo")
    (place / "figures").mkdir()
    (place / "figures" / "mine.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
    )
    (place / "mynets.py").write_text(
        "from torch import nn\n\n\ndef build(num_classes, in_chans):\n"
        "    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())\n"
        "    return nn.Sequential(pooled, nn.Linear(16 * in_chans, num_classes))\n"
    )
    network = timm.create_model("resnet18", num_classes=10, in_chans=1)
    save_file(network.state_dict(), str(place / "resnet18.safetensors"))
    plugin = next(block.text for block in BLOCKS if "def shift(" in block.text)
    (place / "shift.py").write_text(plugin)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main([*BASE, "--out", "results"]) == 0
        assert main([*TINY, "--out", "tiny"]) == 0
    digits = data.load("digits")
    np.savez(place / "adv.npz", images=digits.images[:4], indices=np.arange(4))
    shutil.copytree(place / "results", place / "measured")
    yield place
    for kind, registry in REGISTRIES.items():  # what --plugin registered ends with these tests
        for name, held in registered[kind].items():
            getattr(registry, name).clear()
            getattr(registry, name).update(held)
    sys.modules.pop("mynets", None)
    sys.path[:] = path


@pytest.fixture
def here(workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("ROBUST_INTERP_DATA", str(workplace / "data"))
    return workplace


# --- the tests ----------------------------------------------------------------------------------------


class Parsed(BaseException):
    """Ends a command once its arguments were read."""


@pytest.mark.parametrize(
    "argv", [pytest.param(argv, id=f"{block.place} {shlex.join(argv)}") for block, argv in COMMANDS]
)
def test_every_command_can_be_parsed(argv, monkeypatch):
    parse = argparse.ArgumentParser.parse_args

    def stop(*arguments, **options):
        parse(*arguments, **options)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    with pytest.raises(Parsed):
        main(argv)


RUN = {}  # once, however often it is written
for _block, _argv in COMMANDS:
    if _block.why_not is None:
        RUN.setdefault(tuple(small(_argv)), f"{_block.place} {shlex.join(_argv)}")


@pytest.mark.slow
@pytest.mark.parametrize("argv", [pytest.param(argv, id=place) for argv, place in RUN.items()])
def test_a_command_runs(argv, here, capsys):
    status = main(list(argv))
    assert status == 0 or (argv[0] == "audit" and status == FAILED_AUDIT), capsys.readouterr().err
    assert capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in PYTHON])
def test_a_python_block_runs(block, here):
    text = re.sub(r"\bn=\d+", "n=4", block.text).replace('out="results"', 'out="evaluated"')
    text = text.replace("eps=(8 / 255, 16 / 255)", "eps=(16 / 255,)")
    exec(compile(text, block.place, "exec"), {"__name__": "__main__"})


def described(table):
    return [row[0].strip("`") for row in tables(ROOT / "docs" / "columns.md")[table]]


def header(path):
    with path.open() as file:
        return next(csv.reader(file))


def test_every_column_of_the_results_is_described(here):
    more = [column.name for column in (*OF_PRECISION, *OF_IMAGES, *ON_REQUEST)]  # not where no line has them
    assert described("results.csv") == [*header(here / "results" / "results.csv"), *more]


def test_every_column_of_the_leaderboard_is_described(here):
    patterns = [re.escape(name) for name in described("leaderboard.csv")]
    patterns = [
        re.sub(r"<(corruption|attack|measured)>", r"[a-z_]+([(].*[)])?(_[0-9]+)?", p) for p in patterns
    ]
    patterns = [re.sub(r"<(severity|eps)>", r"[0-9]+", pattern) for pattern in patterns]
    columns = header(here / "results" / "leaderboard.csv")
    assert [name for name in columns if not any(re.fullmatch(pattern, name) for pattern in patterns)] == []


@pytest.mark.slow
def test_every_column_of_an_audit_is_described(here):
    assert main(small(["audit", "--models", "in_resnet20"])) in (0, FAILED_AUDIT)
    assert described("audit.csv") == header(here / "measured" / "audit.csv")


@pytest.mark.slow
def test_every_column_of_external_images_is_described(here):
    argv = shlex.split("verify adv.npz --models in_resnet20 --seeds 1 --eps 8 --out judged --dataset digits")
    assert main(argv) == 0
    assert described("external.csv") == header(here / "judged" / "external.csv")


def test_every_column_of_the_classes_is_described(here, capsys):
    assert main(["leaderboard", "classes", "--column", "clean", "--format", "csv"]) == 0
    found = re.sub(r"predicted_0,.*predicted_9", "predicted_<label>", capsys.readouterr().out.splitlines()[0])
    assert described("leaderboard classes") == found.split(",")


def test_every_column_of_a_comparison_is_described(here, capsys):
    models = "in_resnet20,preact_resnet20"
    assert main(["leaderboard", "compare", "--models", models, "--format", "csv"]) == 0
    assert described("leaderboard compare") == capsys.readouterr().out.splitlines()[0].split(",")
