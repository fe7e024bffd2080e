"""Every command and option says what it is; names that the shell completes; names refused without torch."""

import argparse
import os
import re
import subprocess
import sys

import pytest
import timm
from support.markdown import ROOT

from robust_interp import attacks, corruptions, models, zoo
from robust_interp.benchmark.request import DEFAULTS
from robust_interp.cli import completion, names
from robust_interp.cli.main import parser
from robust_interp.core.architectures import OURS
from robust_interp.core.errors import UserError
from robust_interp.core.registry import BUILT_IN, MODEL_PREFIXES


def walked(at):
    """A parser and all below it."""
    yield at
    for action in at._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from walked(below)


PARSERS = list(walked(parser()))
ACTIONS = [(at.prog, action) for at in PARSERS for action in at._actions if action.dest != "help"]


def test_all_commands_are_walked():
    words = {at.prog.removeprefix("robust-interp").strip() for at in PARSERS}
    assert words == {
        *(
            "",
            "bench",
            "audit",
            "leaderboard",
            "leaderboard show",
            "leaderboard compare",
            "leaderboard paper",
            "leaderboard classes",
        ),
        *(
            "plot",
            "plot coefficients",
            "plot landscape",
            "plot curve",
            "stability",
            "report",
            "train",
            "verify",
        ),
        *("sweep", "models", "store", "store check", "store repair"),
        *("data", "ls", "robustbench", "robustbench export", "robustbench download"),
    }


@pytest.mark.parametrize("at", PARSERS, ids=lambda at: at.prog)
def test_each_command_has_a_sentence_and_an_example(at):
    assert at.description.endswith(".")
    assert at.description[0].isupper()
    assert f"example: {at.prog}" in at.epilog
    assert at.format_help()  # a stray % would raise


@pytest.mark.parametrize(("prog", "action"), ACTIONS, ids=lambda one: getattr(one, "dest", one))
def test_each_option_says_what_it_is_and_its_default(prog, action):
    if isinstance(action, argparse._SubParsersAction):
        return
    assert action.help, f"{prog} {action.dest}"
    if action.help == argparse.SUPPRESS or action.help.endswith("(required)"):
        return
    takes_text = action.nargs != 0 and not isinstance(action, argparse._VersionAction)
    if takes_text and not action.required:
        assert "(default: " in action.help, f"{prog} {action.dest}"
        assert not action.help.startswith("default"), f"{prog} {action.dest}"


# Models are named by --models; what stands alone are results, or what is no model.
ALONE = {
    *(("data", "NAME"), ("ls", "kind"), ("report", "SOURCE"), ("robustbench export", "FOLDER")),
    *(("store check", "FOLDER"), ("store repair", "FOLDER")),
    *(("leaderboard show", "SOURCE"), ("leaderboard paper", "SOURCE"), ("leaderboard compare", "FOLDER")),
    *(("leaderboard classes", "FOLDER"), ("plot curve", "FOLDER"), ("verify", "FILE.npz")),
}


def test_models_and_results_are_given_in_one_way_everywhere():
    shown = [(prog, action) for prog, action in ACTIONS if action.help != argparse.SUPPRESS]
    alone = {
        (prog.removeprefix("robust-interp "), action.metavar or action.dest)
        for prog, action in shown
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction)
    }
    assert alone == ALONE
    takers = {
        prog.removeprefix("robust-interp ") for prog, action in shown if "--models" in action.option_strings
    }
    assert takers == {
        *("bench", "audit", "stability", "train", "sweep", "plot coefficients", "plot landscape"),
        *("leaderboard show", "leaderboard compare", "robustbench export", "robustbench download"),
        *("leaderboard classes", "plot curve", "verify"),
    }


RESULTS = {"out": {"bench", "audit", "verify"}, "folder": {"store check", "store repair"}}
RESULTS |= {"sources": {"leaderboard show", "leaderboard paper"}, "results": {"leaderboard compare"}}
RESULTS |= {"folders": {"leaderboard classes", "plot curve"}}


def test_the_default_results_folder_is_the_same_everywhere():
    found = {}
    for prog, action in ACTIONS:
        if (command := prog.removeprefix("robust-interp ")) in RESULTS.get(action.dest, ()):
            default = action.default[0] if isinstance(action.default, list) else action.default
            found[action.dest, command] = str(default)
    assert found == {(dest, command): DEFAULTS["out"] for dest in RESULTS for command in RESULTS[dest]}


def told(line):
    """What a command line asks for."""
    found = vars(parser().parse_args(line.split()))
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("audit a b --n 3", "audit --models a,b --n 3"),
        ("audit --n 3 a", "audit --n 3 --models a"),
        ("stability a b(x=1,y=2)", "stability --models a,b(x=1,y=2)"),
        ("plot coefficients a b", "plot coefficients --models a,b"),
        ("train a --seeds 2", "train --models a --seeds 2"),
        ("robustbench download Standard", "robustbench download --models Standard"),
    ],
)
def test_names_that_stand_alone_are_models_still(old, new):
    assert told(old) == told(new)


@pytest.mark.parametrize("prog", ["audit", "stability", "plot coefficients", "plot landscape", "train"])
def test_what_needs_models_says_how_to_name_them(command, prog):
    status, _, err = command(*prog.split())
    assert (status, err.count("\n")) == (2, 1)
    assert "the following arguments are required: --models" in err


@pytest.mark.parametrize(
    ("prog", "option", "unit"),
    [
        ("bench", "--eps", "units of 1/255"),
        ("sweep", "--eps", "units of 1/255"),
        ("audit", "--eps", "units of 1/255"),
        ("verify", "--eps", "units of 1/255"),
        ("audit", "--large-eps", "units of 1/255"),
        ("stability", "--eps", "units of 1/255"),
        ("plot landscape", "--radius", "units of 1/255"),
        ("robustbench export", "--eps", "units of 1/255"),
        ("bench", "--mean", "[0, 1] pixels"),
    ],
)
def test_what_has_a_unit_says_it(prog, option, unit):
    [at] = [one for one in PARSERS if one.prog == f"robust-interp {prog}"]
    [action] = [action for action in at._actions if option in action.option_strings]
    assert unit in action.help


def test_the_exit_status_is_explained(command):
    status, out, _ = command("--help")
    assert status == 0
    lines = out.partition("exit status:\n")[2].splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(7 * " ")] == ["0", "1", "2", "3", "130"]
    in_help = set(re.findall(r"^  (\d+)|\((\d+):|, (\d+):", "\n".join(lines), re.MULTILINE))
    page = (
        (ROOT / "docs" / "commands.md")
        .read_text(encoding="utf-8")
        .partition("## Exit codes")[2]
        .partition("\n## ")[0]
    )
    rows = re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
    assert {"".join(found) for found in in_help} == {status for row in rows for status in row.split(", ")}


HELPING = """
import sys
from robust_interp.cli.main import main

for argv in ([], ["bench"], ["audit"], ["train"], ["leaderboard", "show"], ["robustbench", "export"]):
    try:
        main([*argv, "--help"])
    except SystemExit as stop:
        assert stop.code == 0
heavy = {"torch", "timm", "pandas", "numpy", "scipy", "rich"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""


def test_help_imports_nothing_that_takes_long():
    done = subprocess.run([sys.executable, "-c", HELPING], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# Names without torch.


def test_our_names_are_the_registered_ones():
    assert list(OURS) == list(models.ARCHITECTURES)


def own(registry):
    """The names of a registry that no plug-in has added."""
    return [name for name in registry if registry.origins(name) == [BUILT_IN]]


def lacking(names, text):
    """The names that are no word of a text."""
    return set(names) - set(re.findall(r"\w+", text))


def help_of(kind):
    [option] = [one for prog, one in ACTIONS if (prog, one.dest) == ("robust-interp bench", kind)]
    return option.help


def page_of(kind):
    return (ROOT / "docs" / f"{kind}.md").read_text(encoding="utf-8")


def test_the_prefixes_are_those_that_are_resolved():
    from robust_interp.classifiers.prefixes import PREFIXES

    assert tuple(PREFIXES) == MODEL_PREFIXES
    assert not lacking(PREFIXES, help_of("models"))


def test_every_attack_is_in_the_help_and_on_its_page():
    assert not lacking(own(attacks.ATTACKS), help_of("attacks"))
    rows = re.findall(r"^\| `(\w+)` \|", page_of("attacks"), re.MULTILINE)
    assert rows == own(attacks.ATTACKS)


def test_every_corruption_is_on_its_page_and_every_group_in_the_help():
    groups = corruptions.GROUPS
    assert not lacking(groups, help_of("corruptions"))
    assert not lacking(groups, page_of("corruptions"))
    assert not lacking(own(corruptions.CORRUPTIONS), page_of("corruptions"))


def test_the_names_that_timm_knows_are_read_from_its_source():
    assert zoo.known_names() == {*timm.list_models(), *zoo.MODELS}
    assert all(zoo.may_be_registered(name) for name in timm.list_models())
    assert zoo.may_be_registered("vit_base_patch16_224.augreg_in21k")
    assert zoo.may_be_registered("convnext_base_in22k")  # an old name for another
    assert not zoo.may_be_registered("in_resnet41")


def test_the_classes_of_torchattacks_are_read_from_its_source():
    import torchattacks

    left_out = {"MultiAttack", "LGV", "AutoAttack"}
    assert set(attacks.torchattacks_classes()) == set(torchattacks.__all__) - left_out


def test_a_known_name_passes():
    names.check_dataset("cifar10")
    names.check_attacks("fgsm,pgd(steps=3),torchattacks.NIFGSM(steps=10)", None, "none", "DIFGSM")
    names.check_corruptions("noise,fog(severity=3),all", "none", None)
    names.check_models(["all", "in_resnet20", "*preact*", "timm:resnet50", "torch.nn:Identity"], "digits")
    names.check_models(["in_resnet20.digits_digits_seed0", "./model_zoo", "w.pt", "resnet50"], "digits")
    names.check_architectures(["in_resnet110", "resnet50.a1_in1k"])


def test_what_cannot_be_read_is_left_to_what_reads_it():
    names.check_attacks("pgd(", "pgd(3)")
    names.check_corruptions("fog(")


@pytest.mark.parametrize(
    ("check", "argument", "near"),
    [
        (names.check_dataset, "digitz", "digits"),
        (names.check_attacks, "fgsm,fgmm", "fgsm"),
        (names.check_attacks, "torchattacks.NIFGMS", "NIFGSM"),
        (names.check_corruptions, "noise,gausian_noise(severity=1)", "gaussian_noise"),
        (lambda name: names.check_models([name], "digits"), "in_resnet21", "in_resnet20"),
        (lambda name: names.check_models([name], "digits"), "zzz*", "in_resnet20"),
        (lambda name: names.check_models([name], "digits"), "timm:resnet5", "resnet50"),
        (lambda name: names.check_architectures([name]), "in_resnet15", "in_resnet14"),
    ],
)
def test_an_unknown_name_is_refused(check, argument, near):
    with pytest.raises(UserError, match=f"unknown .*{near}"):
        check(argument)


REFUSING = """
import sys
from robust_interp.cli.main import main

for argv in (
    ["bench", "--models", "in_resnet41"],
    ["bench", "--models", "timm:resnet5"],
    ["bench", "--attacks", "fgmm"],
    ["bench", "--strong", "apgd"],
    ["bench", "--corruptions", "gausian"],
    ["bench", "--dataset", "digitz"],
    ["audit", "--models", "in_resnet41"],
    ["audit", "--models", "in_resnet20", "--attack", "pgf"],
    ["train", "--models", "in_resnet20,in_resnet41"],
    ["train", "--models", "in_resnet20", "--dataset", "digitz"],
    ["sweep", "--models", "in_resnet41"],
    ["stability", "--models", "in_resnet41"],
    ["plot", "coefficients", "--models", "in_resnet41"],
    ["plot", "landscape", "--models", "in_resnet20", "--corruption", "gausian"],
):
    assert main(argv) == 1, argv
heavy = {"torch", "torchvision", "torchattacks", "timm", "sklearn"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""


@pytest.mark.slow
def test_unknown_names_are_refused_before_anything_heavy_is_imported(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", REFUSING], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (0, 14), done.stderr
    assert all(line.startswith("robust-interp: unknown ") for line in lines)


# Completion.


def completed(line, tmp_path):
    """What argcomplete offers for a command line whose last word is begun."""
    place = tmp_path / "completions"
    environment = os.environ | {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(place),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "robust_interp"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not {"torch", "timm"} & imported
    return [word.strip() for word in place.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("robust-interp lead", ["leaderboard"]),
        ("robust-interp bench --dat", ["--dataset", "--data-dir"]),
        ("robust-interp leaderboard results --so", ["--sort"]),
        ("robust-interp leaderboard results --sort pgd_8 --format mark", ["markdown"]),
        ("robust-interp leaderboard comp", ["compare"]),
        ("robust-interp bench --attacks fgsm,if", ["fgsm,ifgsm"]),
        ("robust-interp bench --epz 1 --dat", ["--dataset", "--data-dir"]),  # whatever is mistyped before
        ("robust-interp bench --models lambda_in", ["lambda_in_resnet110", "lambda_in_resnet20"]),
        ("robust-interp bench --corruptions gaussian_n", ["gaussian_noise"]),
        ("robust-interp bench --dataset dig", ["digits"]),
        ("robust-interp train --models lambda_in_resnet16", ["lambda_in_resnet164"]),
        (
            "robust-interp sweep --models preact_resnet20,lambda_in_resnet16",
            ["preact_resnet20,lambda_in_resnet164"],
        ),
        (
            "robust-interp leaderboard compare --models in_resnet20,preact_resnet2",
            ["in_resnet20,preact_resnet20"],
        ),
    ],
)
def test_the_shell_completes_names_without_torch(line, offered, tmp_path):
    assert completed(line, tmp_path) == offered


def test_completion_goes_on_with_the_last_of_a_list():
    assert completion.continued("a,b,", ["x", "y"]) == ["a,b,x", "a,b,y"]
    assert completion.continued("", ["x"]) == ["x"]
