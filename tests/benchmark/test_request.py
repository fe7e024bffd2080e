"""The declaration of a run's fields, and what is made from it: options, evaluate's signature, TOML files."""

import inspect
import re
import subprocess
import sys
import tomllib
from dataclasses import fields

import numpy as np
import pytest

import robust_interp
from robust_interp import evaluate
from robust_interp.benchmark import config
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.forms import seed_list
from robust_interp.benchmark.request import DEFAULTS, SETTINGS, Request
from robust_interp.benchmark.settings import resolve_options
from robust_interp.cli.main import parser
from robust_interp.core.errors import UserError

RUN = """
models = ["in_resnet14"]
attacks = "fgsm,pgd(steps=2)"
eps = [16, 0.3]
seeds = [1]
ensembles = false
n = 12
corruptions = "none"
device = "cpu"
"""


def options():
    """What `bench` makes of a command line that says nothing, by the option's name in a Request."""
    return vars(parser().parse_args(["bench"]))


def plan(argv):
    """The plan of a command line of bench, without its name of the command."""
    from robust_interp.cli.main import parsed

    arguments = parsed(parser(), ["bench", *map(str, argv)])
    return Benchmark(Request(**{name: getattr(arguments, name) for name in SETTINGS})).plan


# The declaration.


def test_every_field_is_declared_but_the_objects():
    assert [each.name for each in fields(Request) if each.name not in SETTINGS] == ["modules"]
    for name, about in SETTINGS.items():
        assert about.help, name
    assert SETTINGS["eps"].unit == "units of 1/255"


def test_the_declaration_imports_no_torch():
    code = "import sys, robust_interp.benchmark.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.slow
def test_signature_request_and_options_agree():
    """Field by field: names, defaults, order."""
    signature = inspect.signature(robust_interp.evaluate).parameters
    declared = {each.name: each.default for each in fields(Request) if each.name != "modules"}
    beside = ("out", "workers", "progress")
    own = {name: parameter.default for name, parameter in signature.items() if name not in beside}
    assert own == declared
    first = ["models", "dataset"]  # these two may be given by position
    assert list(own) == [*first, *(name for name in declared if name not in first)]
    by_keyword = [name for name, each in signature.items() if each.kind is each.KEYWORD_ONLY]
    assert by_keyword == [name for name in signature if name not in first]
    assert {name: options()[name] for name in declared} == declared
    assert {name: DEFAULTS[name] for name in declared} == declared


def test_every_argument_of_evaluate_is_described():
    arguments = robust_interp.evaluate.__doc__.partition("Args:")[2].partition("Raises:")[0]
    described = re.findall(r"^ {8}(\w+): ", arguments, re.MULTILINE)
    assert described == list(inspect.signature(robust_interp.evaluate).parameters)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("n_examples", "n"),
        ("batchsize", "batch_size"),
        ("epsilon", "eps"),
        ("num_threads", "threads"),
        ("ensemble_avg", "ensemble_average"),
        ("Eps", "eps"),
    ],
)
def test_an_unknown_argument_names_the_near_one(wrong, meant):
    message = f"evaluate() got an unexpected keyword argument '{wrong}'; did you mean {meant}?"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        robust_interp.evaluate("in_resnet14", **{wrong: 3})


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"ensembles": "False"}, "ensembles must be True or False, not 'False'"),
        ({"ensembles": 1}, "ensembles must be True or False, not 1"),
        *(
            ({"seeds": seeds}, "seeds must be how many of the first there are (3 means 0, 1, 2), or which")
            for seeds in (2.0, "2", True, 0, -1, (), (0, 1.5), ("0",), (-1,))
        ),
        ({"attacks": 5}, "attacks must be a text or a list of texts, not 5"),
        ({"corruptions": [None]}, "corruptions must be a text or a list of texts, not [None]"),
        ({"ensemble": 3}, "ensemble must be a text or a list of texts, not 3"),
        ({"ensemble_attack": [0]}, "ensemble_attack must be a text or a list of texts, not [0]"),
        ({"out": ""}, "out must be a path, not ''"),
        ({"zoo": 5}, "zoo must be a path, not 5"),
        ({"device": 2.5}, "cannot use device 2.5"),
    ],
)
def test_a_value_of_another_kind_is_one_line(wrong, why):
    with pytest.raises(UserError) as caught:
        evaluate("preact_resnet20", **{"n": 4, "attacks": "none", "corruptions": "none", "seeds": 1} | wrong)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "text"), [(2, "2"), ((4, 0), "4,0"), ([0, 0], "0,0"), (range(1, 3), "1,2")]
)
def test_seeds_mean_the_same_in_python_and_on_the_command_line(seeds, text):
    assert resolve_options(Request(models=("all",), seeds=seeds)).seeds == seed_list(text)


def test_seeds_of_numpy_are_seeds_too(tiny_zoo):
    asked = {"zoo": tiny_zoo, "n": 4, "attacks": "none", "corruptions": "none", "ensembles": False}
    for seeds in (np.int64(1), np.array([0]), range(1)):
        assert evaluate("in_resnet14", seeds=seeds, **asked)["train_seed"].tolist() == [0]


@pytest.mark.parametrize(
    "argv",
    [
        *(("bench", option, "") for option in ("--out", "--zoo", "--data-dir", "--config", "--checkpoint")),
        ("report", "-o", ""),
        ("train", "in_resnet14", "--out", ""),
    ],
)
def test_an_empty_path_is_refused(command, argv):
    status, out, err = command(*argv)
    assert (status, out) == (2, "")
    assert "it is empty: name a folder or a file, or . for this folder" in err


@pytest.mark.parametrize("name", ["bench", "audit", "train", "sweep"])
def test_how_to_ask_for_one_seed_is_said_where_seeds_are_described(command, name):
    text = command(name, "--help")[1]
    assert "'1,' means 1 alone" in " ".join(text.split())


def test_an_unknown_argument_without_a_near_one():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'qqqq'$"):
        robust_interp.evaluate(qqqq=1)


# Files.


@pytest.fixture
def written(tmp_path):
    def write(text):
        (tmp_path / "run.toml").write_text(text)
        return tmp_path / "run.toml"

    return write


def test_a_file_is_in_the_units_of_the_command_line(written):
    assert config.read(written(RUN)) == {
        "models": ("in_resnet14",),
        "attacks": "fgsm,pgd(steps=2)",
        "eps": (16 / 255, 0.3 / 255),
        "seeds": (1,),
        "ensembles": False,
        "n": 12,
        "corruptions": "none",
        "device": "cpu",
    }
    assert config.read(written('seeds = 2\nn = "all"\nattacks = ["fgsm", "pgd(alpha=eps/4, steps=3)"]')) == {
        "seeds": (0, 1),
        "n": "all",
        "attacks": "fgsm,pgd(alpha=eps/4, steps=3)",
    }
    assert config.read(written('eps = "1,2"')) == config.read(written('eps = ["1/255", 2]'))
    assert config.read(written('eps = ["0.3/255"]')) == {"eps": (0.3 / 255,)}
    assert config.read(written('models = "a,b(x=1,y=2)"\nmean = [0.5, 1]\neps = 8')) == {
        "models": ("a", "b(x=1,y=2)"),
        "mean": (0.5, 1.0),
        "eps": (8 / 255,),
    }


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("batchsize = 3", ["unknown key 'batchsize'", "did you mean batch_size?"]),
        ("n-examples = 3", ["unknown key 'n-examples'", "did you mean n?"]),
        ("modules = 3", ["unknown key 'modules'"]),
        ("qqqq = 3", ["unknown key 'qqqq'", "known: models, mean"]),
        ('batch_size = "64"', ["batch_size: must be a whole number, not '64'"]),
        ("batch_size = 2.5", ["batch_size: must be a whole number, not 2.5"]),
        ("batch_size = true", ["batch_size: must be a whole number, not True"]),
        ("ensembles = 1", ["ensembles: must be true or false, not 1"]),
        ("dataset = 3", ["dataset: must be text, not 3"]),
        ("models = [1]", ["models: must be a list of names, not [1]"]),
        ('eps = "1;2"', ["eps: '1;2' is not a list of numbers"]),
        ("eps = [0.3]", ["eps: 0.3 looks like [0, 1] pixels"]),
        ("eps = [0.01]", ["eps: 0.01 looks like [0, 1] pixels", "did you mean 2.55?"]),
        ("eps = []", ["eps: give at least one radius"]),
        ("seeds = [-1]", ["seeds: '-1' is not a whole number of at least 0"]),
        ("n = 0", ["n: must be at least 1"]),
        ('protocol = "wurst"', ["protocol: must be final or worst, not 'wurst'"]),
        ("n = ", ["is not a TOML file"]),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(command, written, line, parts):
    path = written(line)
    with pytest.raises(UserError) as caught:
        config.read(path)
    status, out, err = command("bench", "--config", path)
    assert (status, out, err) == (1, "", f"robust-interp: {caught.value}\n")
    assert err.count("\n") == 1
    for part in [str(path), *parts]:
        assert part in err


def test_a_file_that_is_not_there_is_refused(command, tmp_path):
    status, _, err = command("bench", "--config", tmp_path / "none.toml")
    assert status == 1
    assert err == f"robust-interp: cannot read {tmp_path / 'none.toml'}: No such file or directory\n"


def test_the_command_line_overrides_the_file(written, tiny_zoo):
    path, zoo = written(RUN), ["--zoo", tiny_zoo]
    assert {c.perturbation.column for c in plan(["--config", path, *zoo]).cells} == {
        *("clean", "fgsm_0.3", "fgsm_16", "pgd(steps=2)_0.3", "pgd(steps=2)_16")
    }
    changed = plan(["--config", path, "--eps", "8", *zoo, "--attacks", "fgsm", "--n", "7", "--ensembles"])
    assert changed.n == 7
    assert {cell.perturbation.column for cell in changed.cells} == {"clean", "fgsm_8"}
    both = plan(["--seeds", "2", "--ensembles", "--config", path, *zoo])
    assert {cell.classifier.members for cell in both.cells} == {1, 2}


def test_a_run_without_names_takes_all_of_the_only_folder(tiny_zoo, written):
    """And not the seeds 0, 1, 2 of the embedded checkpoints, which it may lack."""
    of = ["--zoo", tiny_zoo, "--n", "4"]
    alone = plan([*of, "--only-zoo"])
    assert {cell.classifier.model for cell in alone.cells} == {"in_resnet14", "preact_resnet14"}
    path = written(f"zoo = '{tiny_zoo}'\nonly_zoo = true\nn = 4")
    assert plan(["--config", path]) == alone
    assert {c.classifier.model for c in plan(["--config", path, "--no-only-zoo"]).cells} > {"plain_net20"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [
        "--n 9",
        "--models in_resnet14 --eps 0.3/255,0.1/255 --attacks fgsm --n 5",
        "--models in_resnet14 --eps 0.3,1,2.5,254.9,100 --attacks fgsm --n all --corruptions none",
        "--models in_resnet14,preact_resnet14 --seeds 0,1 --no-ensembles --ensemble all --ensemble-attack "
        "white-box,member:0 --ensemble-average logits --protocol worst --seed 4 --strong --strong-n 3 --n 5",
        "--models in_resnet14.digits_none_seed1 --seeds 1, --attacks none --corruptions fog(severity=2)",
    ],
)
def test_a_run_that_is_saved_is_read_back_as_the_same_plan(command, tiny_zoo, tmp_path, argv):
    place = tmp_path / "run.toml"
    argv = [*argv.split(), "--zoo", tiny_zoo, "--device", "cpu"]
    assert command("bench", *argv, "--save-config", place, "--dry-run", "--out", tmp_path / "r")[0] == 0
    assert plan(["--config", place]) == plan(argv)
    text = place.read_text()
    assert tomllib.loads(text)["out"] == str(tmp_path / "r")
    for name in SETTINGS:
        assert re.search(rf"^{name} = |^# {name} is not set$", text, re.MULTILINE), name
    assert "in units of 1/255" in re.sub(r"\n# ", " ", text)


@pytest.mark.slow
def test_a_saved_run_has_its_plugins(fresh, command, tiny_zoo, tmp_path):
    plugin = tmp_path / "mine_of_config.py"
    plugin.write_text(
        "from robust_interp.plugins import attack\n"
        "@attack()\n"
        "def nudge_of_config(model, images, labels, *, eps):\n"
        "    return (images + eps).clamp(0, 1)\n"
    )
    argv = ["--zoo", tiny_zoo, "--models", "in_resnet14", "--n", "5", "--attacks", "nudge_of_config"]
    place = tmp_path / "run.toml"
    saved = command("bench", *argv, "--plugin", plugin, "--save-config", place, "--dry-run")
    again = command("bench", "--config", place, "--dry-run")
    assert (saved[0], again[0]) == (0, 0)
    assert tomllib.loads(place.read_text())["plugin"] == [str(plugin)]
    assert "nudge_of_config" in again[1]


@pytest.mark.slow
def test_radii_are_given_in_python_as_on_the_command_line_too(tmp_path):
    """8/255 as a number, and 8 or 8/255 as texts, are one radius."""
    quick = {"attacks": "fgsm", "corruptions": "none", "seeds": (0,), "n": 4, "device": "cpu"}
    tables = [
        evaluate("preact_resnet20", eps=eps, out=tmp_path, **quick) for eps in ((8 / 255,), "8", ["8/255"])
    ]
    for table in tables[1:]:
        assert table.drop(columns="seconds").equals(tables[0].drop(columns="seconds"))
    assert tables[0]["eps_255"].dropna().tolist() == [8.0]
