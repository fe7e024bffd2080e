"""Plug-ins: installed ones and files, what is refused, what identifies them, and the checks for authors."""

import ast
import hashlib
import importlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from robust_interp import data, plugins, zoo
from robust_interp.attacks import ATTACKS, AttackType, parse_attacks, torchattacks_classes
from robust_interp.benchmark.api import evaluate
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.plan import radii
from robust_interp.benchmark.request import Request
from robust_interp.core.errors import UserError
from robust_interp.core.registry import BUILT_IN, Origin, Registry
from robust_interp.core.sources import LocalModules, code_hash, own_modules
from robust_interp.core.specs import OfEps
from robust_interp.corruptions.table import corrupt
from robust_interp.results.combine import gather
from robust_interp.store import FILE_NAME

SMALL = "--models in_resnet20 --seeds 0, --n 4 --eps 8 --corruptions none --device cpu --quiet"
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "example_plugin"

DECLARED = "classes=2, shape=(1, 4, 4), mean=(0.5,), std=(0.5,), eps_255=(8,)"
ALL_DECLARED = f"{DECLARED}, attack_defaults={{}}, default_n=9, crop_padding=1, flip=True"


# Installed plug-ins, as the metadata of made-up distributions.


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a module and its entry points where Python looks: a distribution without an installer."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    modules = []

    def put(distribution, points, module=None, source="", version="1.0"):
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        sections = [
            f"[robust_interp.{kind}]\n" + "\n".join(f"{name} = {value}" for name, value in named.items())
            for kind, named in points.items()
        ]
        (info / "entry_points.txt").write_text("\n\n".join(sections) + "\n")
        if module:
            (site / f"{module}.py").write_text(textwrap.dedent(source))
            modules.append(module)
        return site

    yield put
    for module in modules:
        sys.modules.pop(module, None)


def attacks_registry():
    registry = Registry("attack", group="robust_interp.attacks", holds=AttackType)
    registry.add("pgd", ATTACKS["pgd"])
    return registry


IDLE = """
    from robust_interp.plugins import attack

    @attack()
    def idle(model, images, labels, *, eps):
        return images.clone()
"""


def test_an_installed_plug_in_is_found_by_name(install):
    install("far-away", {"attacks": {"idle": "far_away:idle"}}, "far_away", IDLE, version="2.5")
    registry = attacks_registry()
    assert list(registry) == ["pgd", "idle"]
    assert [origin.name for origin in registry.origins("idle")] == ["far-away 2.5"]
    assert registry.origins("pgd") == [BUILT_IN]
    images = torch.rand(2, 3, 4, 4)
    made = registry["idle"].torchattacks_class(None, eps=0.1)(images, None)
    assert torch.equal(made, images)


def test_listing_runs_nothing_of_a_plug_in(install):
    source = "open('ran', 'w').close()\nraise SystemExit('imported')"
    install("eager", {"attacks": {"eager": "eager:attack"}}, "eager", source)
    registry = attacks_registry()
    assert "eager" in registry
    assert sorted(registry) == ["eager", "pgd"]
    assert registry.problems() == {}
    assert registry["pgd"] is ATTACKS["pgd"]
    with pytest.raises(UserError, match="unknown attack 'eagr'; did you mean eager"):
        registry["eagr"]
    assert not Path("ran").exists()
    assert "eager" not in sys.modules


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("idle = 1 / 0", "ZeroDivisionError: division by zero"),
        ("def idle(:", "SyntaxError: .*line 1"),
        ("raise SystemExit(3)", "it ends the process with status 3"),
        ("other = 1", "AttributeError: .*idle"),
        (
            "def idle(model, images, labels): ...",
            "its type is function, not AttackType: is its decorator missing",
        ),
    ],
)
def test_a_broken_plug_in_is_named_and_the_rest_goes_on(install, source, why):
    install("broken", {"attacks": {"idle": "broken_module:idle"}}, "broken_module", source)
    install("sound", {"attacks": {"other": "sound_module:idle"}}, "sound_module", IDLE)
    registry = attacks_registry()
    for _ in range(2):  # the same answer a second time
        with pytest.raises(UserError, match=f"attack 'idle' of broken 1.0 cannot be used: {why}") as refusal:
            registry["idle"]
        assert "\n" not in str(refusal.value)
    assert list(registry.problems(registry.__getitem__)) == ["idle"]
    assert registry["other"].defaults == {}


def test_a_name_that_no_command_line_could_hold_is_refused(install):
    install("dashed", {"attacks": {"far-off": "dashed:idle"}}, "dashed", IDLE)
    with pytest.raises(UserError, match=r"'far-off' of dashed 1.0 cannot be used: its name must match"):
        attacks_registry()["far-off"]
    with pytest.raises(UserError, match="data set 'my_bars': its name must match"):
        data.DATASETS.add("my_bars", data.DATASETS["digits"], Origin("/mine.py", "sha256:0"))


@pytest.mark.parametrize(
    ("kind", "name"), [("corruption", "noise"), ("corruption", "haze_2"), ("attack", "worst")]
)
def test_an_installed_plug_in_with_an_ambiguous_name_is_refused_as_one_of_a_file_is(
    install, monkeypatch, kind, name
):
    call, signature = ("", "image, severity, rng") if kind == "corruption" else ("()", "model, x, y, *, eps")
    source = f"from robust_interp.plugins import {kind}\n@{kind}{call}\ndef {name}({signature}): 0\n"
    module = f"installed_{name}"
    install(f"installed-{name}", {f"{kind}s": {name: f"{module}:{name}"}}, module, source)
    registry = plugins.REGISTRIES[f"{kind}s"]
    monkeypatch.setitem(
        vars(registry), "_points", {name: list(entry_points(group=registry.group, name=name))}
    )
    with pytest.raises(UserError, match=f"{kind} '{name}': its column names would be ambiguous"):
        registry[name]


def test_an_entry_point_that_cannot_be_read_is_a_broken_plug_in(install):
    install("garbled", {"attacks": {"idle": "not a module"}})
    with pytest.raises(UserError, match=r"attack 'idle' of garbled 1.0 cannot be used"):
        attacks_registry()["idle"]


def test_what_two_claim_is_refused_naming_both(install):
    install("first", {"attacks": {"idle": "first:idle", "pgd": "first:idle"}}, "first", IDLE)
    install("second", {"attacks": {"idle": "second:idle"}}, "second", IDLE, version="0.3")
    registry = attacks_registry()
    with pytest.raises(
        UserError, match=r"'idle' is declared by (first 1.0|second 0.3) and by (first|second)"
    ):
        registry["idle"]
    with pytest.raises(UserError, match=r"attack 'pgd' is declared by robust-interp and by first 1.0"):
        registry["pgd"]
    assert sorted(registry.problems()) == ["idle", "pgd"]
    with pytest.raises(UserError, match=r"declared by .*first 1.0.* and by /mine.py"):
        registry.add("idle", ATTACKS["pgd"], Origin("/mine.py", "sha256:0"))


def test_a_name_is_added_once():
    registry = attacks_registry()
    with pytest.raises(UserError, match="attack 'pgd' is declared by robust-interp and by robust-interp"):
        registry.add("pgd", ATTACKS["pgd"])


def test_the_code_of_an_installed_plug_in_is_its_version_and_its_source(install):
    found = []
    for version, comment in (("1.0", ""), ("1.1", ""), ("1.1", "# edited in an editable install")):
        site = install(
            "dist",
            {"attacks": {"idle": "dist_module:idle"}},
            "dist_module",
            textwrap.dedent(IDLE) + comment,
            version,
        )
        registry = attacks_registry()
        found.append(registry.code("idle")["plugin"])
        assert found[-1].startswith(f"dist {version} ")
        sys.modules.pop("dist_module", None)
        for info in site.glob("*.dist-info"):
            for file in info.iterdir():
                file.unlink()
            info.rmdir()
    assert len(set(found)) == 3
    assert registry.code("pgd") == {}
    assert registry.code("nowhere") == {}


@pytest.mark.slow
def test_a_model_that_takes_the_name_of_another_is_refused(install):
    source = """
        from timm.models import register_model

        @register_model
        def resnet18(pretrained=False, **arguments): ...
    """
    import timm

    before = timm.model_entrypoint("resnet18")
    install("greedy", {"models": {"resnet18": "greedy:resnet18"}}, "greedy", source)
    models = Registry("model", group="robust_interp.models")
    with pytest.MonkeyPatch.context() as patch:
        own = models
        for module in (zoo, zoo.registered):
            patch.setattr(module, "MODELS", own)
        with pytest.raises(
            UserError, match=r"'resnet18' is declared by greedy 1.0 and by timm.models.resnet"
        ):
            zoo.create("resnet18")
    assert timm.model_entrypoint("resnet18") is before


def test_a_model_that_does_not_register_itself_is_refused(install, monkeypatch):
    install("shy", {"models": {"shy_net": "shy:shy_net"}}, "shy", "def shy_net(**arguments): ...")
    own = Registry("model", group="robust_interp.models")
    for module in (zoo, zoo.registered):
        monkeypatch.setattr(module, "MODELS", own)
    with pytest.raises(UserError, match=r"model 'shy_net' of shy 1.0 is not registered with timm"):
        zoo.create("shy_net")


@pytest.mark.slow
def test_all_leaves_out_what_a_broken_plug_in_provides(install, tiny_zoo, tmp_path, monkeypatch, command):
    """Its checkpoint is named in one warning; asked for by name it is an error."""
    folder = tmp_path / "zoo"
    for name in ("in_resnet14.digits_none_seed0", "preact_resnet14.digits_none_seed0"):
        target = folder / name.replace("preact_resnet14", "lost_net")
        target.mkdir(parents=True)
        for file in (tiny_zoo / name).iterdir():
            text = file.read_bytes()
            if file.suffix == ".json":
                text = text.replace(b"preact_resnet14", b"lost_net")
            (target / file.name).write_bytes(text)
    install("lost", {"models": {"lost_net": "lost_module:lost_net"}}, "lost_module", "import gone_away")
    own = Registry("model", group="robust_interp.models")
    for module in (zoo, zoo.registered):
        monkeypatch.setattr(module, "MODELS", own)
    monkeypatch.setattr(zoo.catalogue, "bundled", lambda: tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    small = ["--zoo", folder, "--n", "4", "--attacks", "none", "--corruptions", "none", "--quiet"]
    status, out, err = command("bench", "--models", "all", *small)
    assert status == 1  # all else is measured
    warned = [line for line in err.splitlines() if "lost_net" in line]
    assert warned == [
        "warning: model 'lost_net' of lost 1.0 cannot be used: ModuleNotFoundError: No module named "
        "'gone_away'; it is left out"
    ]
    assert pd.read_csv("results/results.csv")["model"].tolist() == ["in_resnet14"]
    status, out, err = command("bench", "--models", "lost_net", *small)
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert "lost 1.0 cannot be used: ModuleNotFoundError" in err


# Plug-in files.


@pytest.fixture
def write(tmp_path):
    def put(source, name="mine.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        return path

    return put


STEP = """
    @attack()
    def stepping(model, images, labels, *, eps):
        return (images + FACTOR * eps).clamp(0, 1)
    """

SHIFT = """
    from robust_interp.plugins import attack, corruption, dataset

    @attack()
    def up(model, images, labels, *, eps, share=1.0):
        return (images + share * eps).clamp(0, 1)

    @corruption
    def darker(image, severity, rng):
        return image * (1 - severity / 10)
"""


def test_what_a_file_declares_is_registered(fresh, write):
    path = write(SHIFT)
    plugins.load(path)
    plugins.load(path)  # which changes nothing
    assert ATTACKS["up"].defaults == {"share": 1.0}
    assert [origin.name for origin in ATTACKS.origins("up")] == [str(path)]
    images, darker = np.full((1, 1, 2, 2), 200, np.uint8), plugins.REGISTRIES["corruptions"]["darker"]
    np.testing.assert_allclose(darker(images[0] / 255, 5, None), 100 / 255)


def test_numbers_of_numpy_declare_an_attack_as_they_do_a_data_set():
    steps, yes, no = np.int64(10), np.bool_(1), np.bool_(0)
    half, quarter, of_eps, word = np.float32(0.5), np.float64(0.25), OfEps(np.float32(0.25)), np.str_("a")

    @plugins.attack(random=yes, gradient=no, alone=yes, classes=np.int64(3))
    def moving(
        model, x, y, *, eps, steps=steps, decay=half, share=quarter, fast=yes, alpha=of_eps, loss=word
    ): ...

    plain = {"steps": 10, "decay": 0.5, "share": 0.25, "fast": True, "alpha": OfEps(0.25), "loss": "a"}
    assert moving.defaults == plain
    kinds = [int, float, float, bool, OfEps, str]
    assert [type(value) for value in moving.defaults.values()] == kinds
    assert type(moving.defaults["alpha"].factor) is float
    declared = moving.random, moving.gradient, moving.alone, moving.classes
    assert declared == (True, False, True, 3)
    assert [type(value) for value in declared] == [bool, bool, bool, int]


@pytest.fixture
def radii_of(monkeypatch):
    """Resolves the radii of a data set with these default parameters."""

    def resolve(defaults):
        kind = replace(data.DATASETS["digits"], name="made", attack_defaults=defaults)
        with data.DATASETS.registered("made", kind):
            return radii(Request(), replace(data.load("digits"), name="made"))

    return resolve


@pytest.mark.parametrize("key", ["step", "Steps", "foo"])
def test_a_default_of_a_data_set_that_no_attack_takes_is_refused(radii_of, monkeypatch, key):
    built_in = attacks_registry()
    for name in ("mifgsm", "deepfool"):
        built_in.add(name, ATTACKS[name])
    monkeypatch.setattr("robust_interp.attacks.ATTACKS", built_in)
    known = {"alpha": OfEps(0.25), "steps": 10, "decay": 0.5, "overshoot": 0.1}  # each of some attack
    assert radii_of(known)[1] == known
    with pytest.raises(UserError, match=f"data set 'made', attack_defaults: unknown parameter '{key}'; "):
        radii_of(known | {key: 3})


OWN = "from robust_interp.plugins import attack\n@attack()\ndef own(model, x, y, *, eps, foo=1): 0\n"


def test_a_default_of_a_data_set_may_be_of_an_attack_of_a_file(fresh, write, radii_of):
    plugins.load(write(OWN))
    assert radii_of({"foo": 3})[1] == {"foo": 3}


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_default_of_a_data_set_may_be_of_an_installed_attack(install, monkeypatch, radii_of, is_broken):
    install("with-foo", {"attacks": {"own": "with_foo:own"}}, "with_foo", "1 / 0" if is_broken else OWN)
    monkeypatch.setattr("robust_interp.attacks.ATTACKS", attacks_registry())
    assert radii_of({"steps": 3})[1] == {"steps": 3}
    assert "with_foo" not in sys.modules  # it was not needed
    assert radii_of({"foo": 3})[1] == {"foo": 3}
    if not is_broken:
        with pytest.raises(UserError, match="unknown parameter 'fooo'; did you mean foo"):
            radii_of({"fooo": 3})


def test_declaring_registers_nothing_outside_a_file():
    @plugins.attack()
    def nowhere(model, images, labels, *, eps): ...

    assert isinstance(nowhere, AttackType)
    assert "nowhere" not in ATTACKS


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("x = 1\ny = x / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("def f():\n    raise KeyError\n\n\nf()\n", "line 2: KeyError"),
        ("x = 1\nx = (\n", "line 2: SyntaxError: '(' was never closed"),
        ("import nothing_like_it\n", "line 1: ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("raise SystemExit(2)\n", "line 1: it ends the process with status 2"),
        ("x = 1\n", "does not declare an attack, corruption, data set or model"),
        (
            "from robust_interp.plugins import attack\n@attack()\ndef pgd(model, x, y, *, eps): ...\n",
            "attack 'pgd' is declared by robust-interp and by {path}",
        ),
        (
            "from robust_interp.plugins import attack\n\n@attack()\ndef bare(model, x, y): ...\n",
            "line 3: attack 'bare' must take eps as a keyword: (model, images, labels, *, eps)",
        ),
        (
            "from robust_interp.plugins import attack\n\n@attack()\ndef a(model, x, y, *, eps, b): ...\n",
            "line 3: attack 'a': b needs a default value",
        ),
        *(
            (
                f"from robust_interp.plugins import attack\n@attack()\ndef a(m, x, y, *, eps, {word}=1): 0\n",
                f"line 2: attack 'a': the keyword {word} has another meaning in robust-interp: rename it",
            )
            for word in ("model", "restarts", "severity", "stop", "target")
        ),
        *(
            (
                f"from robust_interp.plugins import OfEps, attack\n@attack()\n"
                f"def a(m, x, y, *, eps, {key}={value}): 0\n",
                f"line 2: attack 'a': the default value of {key} must be {what}, not {value}",
            )
            for what, found in (
                (
                    "a number of at least 0, True, False, a word or a fraction of eps",
                    ("c=None", "c=-1", "c=(1, 2)", "c=9223372036854775808", "c=OfEps(factor=-1.0)"),
                ),
                ("a whole number of at least 1", ("steps='auto'", "steps=2.5", "steps=0", "steps=True")),
                ("a number above 0 or a fraction of eps", ("alpha=0", "alpha='auto'", "alpha=True")),
                ("Linf or L2", ("norm='l2'", "norm='L1'", "norm=2")),
            )
            for key, _, value in (each.partition("=") for each in found)
        ),
        *(
            (
                f"from robust_interp.plugins import attack\n@attack(norm={norm!r})\n"
                "def a(m, x, y, *, eps): 0\n",
                f"line 2: attack 'a': norm must be Linf, L2, L1, L0, not {norm!r}",
            )
            for norm in ("l2", "linf", 2, None)
        ),
        *(
            (
                "from robust_interp.plugins import attack\n@attack()\n"
                f"def {name}(model, x, y, *, eps{more}): 0\n",
                f"line 2: attack '{name}': its columns would look like those of an attack in {norm}, but its "
                "norm is Linf: rename it",
            )
            for name, norm in (("model2", "L2"), ("modell1", "L1"), ("CELL0", "L0"))
            for more in ("", ", norm='L2'")
        ),
        *(
            (
                f"from robust_interp.plugins import {kind}\n@{kind}{call}\nclass mine:\n    __call__ = 0\n",
                f"line 2: {kind} 'mine' must be a function, defined with def",
            )
            for kind, call in (("attack", "()"), ("corruption", ""), ("dataset", f"({DECLARED})"))
        ),
        *(
            (
                f"from robust_interp.plugins import attack\n@attack({name}={value})\n"
                "def a(m, x, y, *, eps): 0\n",
                f"line 2: attack 'a': {name} must be {what}, not {value}",
            )
            for name, what, values in (
                ("classes", "a whole number of at least 2", ("'two'", "1", "2.0", "True")),
                ("random", "True or False", ("'yes'", "1")),
                ("gradient", "True or False", ("None",)),
            )
            for value in values
        ),
        *(
            (
                f"from robust_interp.plugins import dataset\n@dataset({ALL_DECLARED.replace(right, wrong)})\n"
                "def d(split, root): 0\n",
                f"line 2: data set 'd': {right.partition('=')[0]} must be {what}, "
                f"not {wrong.partition('=')[2]}",
            )
            for right, what, values in (
                (
                    "eps_255=(8,)",
                    "radii above 0 and at most 255",
                    ("8", "'8'", "(0,)", "()", "(800,)", "(8, -8)", "(True,)"),
                ),
                (
                    "mean=(0.5,)",
                    "a number from 0 to 1 for each channel",
                    ("(0.5, 0.5, 0.5)", "0.5", "(5.0,)", "(-0.1,)", "(True,)", "()"),
                ),
                (
                    "std=(0.5,)",
                    "a number above 0 for each channel",
                    ("(0.5, 0.5)", "(0.0,)", "(-1,)", "('1',)"),
                ),
                ("shape=(1, 4, 4)", "(C, H, W)", ("(4, 4)", "'abc'", "(1, 0, 4)", "(1, 4, 4.0)")),
                ("classes=2", "a whole number of at least 2", ("'two'", "1", "True")),
                (
                    "default_n=9",
                    "a whole number of at least 1, or None for all",
                    ("0", "'all'", "2.5", "True"),
                ),
                ("crop_padding=1", "a whole number of at least 0", ("-3", "0.5", "None")),
                ("flip=True", "True or False", ("'maybe'", "1")),
                (
                    "attack_defaults={}",
                    "a dict of values by parameter",
                    ("3", "'steps'", "(1,)"),
                ),
            )
            for wrong in (f"{right.partition('=')[0]}={value}" for value in values)
        ),
        *(
            (
                "from robust_interp.plugins import dataset\n"
                f"@dataset({DECLARED}, attack_defaults={defaults})\ndef d(split, root): 0\n",
                f"line 2: data set 'd': {why}",
            )
            for defaults, why in (
                ("{'pgd': 3}", "the keys of attack_defaults must be parameters, and 'pgd' is an attack"),
                *(
                    (f"{{{key!r}: 2}}", f"attack_defaults cannot set {key!r}: no attack has a default for it")
                    for key in ("eps", "norm", "restarts", "target", "stop", 3)
                ),
                (
                    "{'alpha': -3}",
                    "the default value of alpha must be a number above 0 or a fraction of eps, not -3",
                ),
                (
                    "{'steps': 2.5}",
                    "the default value of steps must be a whole number of at least 1, not 2.5",
                ),
                ("{'c': None}", "the default value of c must be a number of at least 0, True, False, a word"),
            )
        ),
        *(
            (
                f"from robust_interp.plugins import {kind}\n@{kind}{call}\ndef {name}(a, b, c, *, eps): 0\n",
                f"{kind} '{name}': its column names would be ambiguous",
            )
            for kind, call, name in (
                ("corruption", "", "fog_2"),  # whose mean would stand where fog at severity 2 does
                ("corruption", "", "common15"),
                ("corruption", "", "square"),  # an attack, whose columns are square_1 and so on
                ("corruption", "", "rank"),
                ("corruption", "", "fog_std"),
                ("attack", "()", "model"),
                ("attack", "()", "fog"),
                ("attack", "()", "worst"),
                ("attack", "()", "strong_mine"),
            )
        ),
        *(
            (
                f"from robust_interp.plugins import attack\n@attack({norm})\ndef {name}(m, x, y, *, eps):0\n",
                f"line 2: attack '{name}': its name must not end in {name[-3:]}",
            )
            for name, norm in (
                ("mine_l2", "norm='L2'"),
                ("mine_l2", ""),
                ("square_l2", "norm='L2'"),  # the columns of square(norm=L2)
                ("FAB_l1", "norm='L1'"),  # of a class of torchattacks
                ("Pixle_l0", "norm='L0'"),
            )
        ),
        (
            "from robust_interp.plugins import attack\n@attack()\ndef pgd(m, x, y, *, eps, norm='Linf'): 0\n",
            "attack 'pgd' is declared by robust-interp and by {path}",  # its columns in L2 would be of pgd_l2
        ),
        *(
            (
                f"from robust_interp.plugins import attack\n@attack()\ndef {name}(m, x, y, *, eps): 0\n",
                f"line 2: attack '{name}': torchattacks has a class of this name: rename it",
            )
            for name in ("Pixle", "PGD", "AutoAttack", "MultiAttack")
        ),
        (
            "from robust_interp.plugins import attack, corruption\n"
            "@attack()\ndef twin(model, x, y, *, eps): ...\n"
            "@corruption\ndef twin(image, severity, rng): ...\n",
            "line 4: corruption 'twin': its column names would be ambiguous",
        ),
        (
            "from timm.models import register_model\n@register_model\ndef resnet18(): ...\n",
            "line 2: UserWarning: Overwriting resnet18 in registry",
        ),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_says_where(fresh, write, command, source, why):
    path = write(source)
    status, out, err = command("ls", "--plugin", path)
    assert (status, out) == (1, "")
    assert err.startswith(f"robust-interp: plug-in {path}")
    assert why.format(path=path) in err
    assert err.count("\n") == 1


@pytest.mark.filterwarnings("ignore:Flatten")
@pytest.mark.parametrize(("spec", "norm"), [("of_keywords", "Linf"), ("of_keywords(norm=L2, eps=0.5)", "L2")])
def test_any_other_keyword_reaches_the_attack_with_its_default(fresh, write, spec, norm):
    source = f"""
        from robust_interp.plugins import OfEps, attack

        @attack()
        def of_keywords(m, x, y, *, eps, norm="Linf", n_classes=4, fast=True, loss="ce", share=OfEps(0.5)):
            assert (norm, n_classes, fast, loss, share) == ({norm!r}, 4, True, "ce", eps / 2)
            return x
        """
    plugins.load(write(source))
    images = (torch.eye(3).view(3, 3, 1, 1), torch.arange(3), 3)
    table = evaluate(torch.nn.Flatten(), images, attacks=spec, eps=[0.1], corruptions="none")
    assert table["norm"].dropna().tolist() == [norm]


@pytest.mark.parametrize("norm", ["L2", "L1", "L0"])
def test_a_name_that_ends_with_a_norm_is_no_fault_in_another_one_than_linf(norm):
    def same(model, images, labels, *, eps):
        return images

    for name in ("model2", "minel1", "CELL0", "mine_L1", "l2_of_mine"):
        same.__name__ = name
        assert plugins.attack(norm=norm)(same).norm == norm


@pytest.mark.parametrize("entry", ["packed", "made_by_hand"])
def test_a_package_cannot_give_an_attack_such_a_name_either(install, monkeypatch, entry):
    source = """
        from robust_interp.attacks import AttackType
        from robust_interp.plugins import attack

        @attack(norm="L2")
        def packed(m, x, y, *, eps): ...

        made_by_hand = AttackType("PGDL2", {}, norm="L2")
        """
    names = ("apgd_ce_l2", "FAB_l2", "packed_l2")
    install("packed", {"attacks": {name: f"packed:{entry}" for name in names}}, "packed", source)
    points = {name: list(entry_points(group=ATTACKS.group, name=name)) for name in names}
    monkeypatch.setitem(vars(ATTACKS), "_points", points)
    for name in names:
        with pytest.raises(UserError, match=f"'{name}' of packed .* cannot be used: its name must match"):
            parse_attacks(f"{name}(eps=1)", [], {}, 0)
    (found,) = parse_attacks("apgd_ce(norm=L2, eps=0.5)", [], {}, 0)
    assert found.column == "apgd_ce_l2_0.5"


def test_no_class_of_torchattacks_has_such_a_name():
    assert all(re.fullmatch(ATTACKS.names, name) for name in torchattacks_classes())


def test_a_file_that_is_not_there(command, tmp_path):
    status, out, err = command("bench", "--plugin", tmp_path / "none.py")
    assert (status, out) == (1, "")
    assert err == f"robust-interp: cannot read plug-in {tmp_path / 'none.py'}: No such file or directory\n"


def test_a_file_that_changed_is_not_loaded_over_itself(fresh, write):
    plugins.load(write(SHIFT))
    with pytest.raises(UserError, match="has changed since it was loaded"):
        plugins.load(write(SHIFT + "\n    # another"))


def test_a_file_that_was_refused_can_be_corrected_and_loaded(fresh, write):
    with pytest.raises(UserError, match="corruption 'fog' is declared by"):
        plugins.load(write(SHIFT.replace("darker", "fog")))
    assert "up" not in ATTACKS
    plugins.load(write(SHIFT))
    assert "up" in ATTACKS


@pytest.mark.parametrize("mistake", ["raise ValueError", "from robust_interp.nothing import x"])
def test_a_refused_file_whose_imported_helper_is_corrected_needs_a_new_process(
    fresh, write, monkeypatch, mistake
):
    """Otherwise the helper of before would run under the hash of the new one."""
    helper = write("FACTOR = 1", "first_helper_of_mine.py")
    source = f"from first_helper_of_mine import FACTOR\n{textwrap.dedent(SHIFT)}"
    monkeypatch.syspath_prepend(str(helper.parent))
    with pytest.raises(UserError, match="line"):
        plugins.load(write(source + mistake))
    helper.write_text("FACTOR = 22")
    told = f"imports {helper}, which has changed since this process has imported it: start a new process"
    for name in ("mine.py", "another.py"):
        with pytest.raises(UserError, match=told):
            plugins.load(write(source, name))
    assert "up" not in ATTACKS
    helper.write_text("FACTOR = 1")
    plugins.load(write(source))
    assert "up" in ATTACKS
    del sys.modules["first_helper_of_mine"]


def test_a_refused_file_whose_helper_could_not_be_imported_can_be_corrected(fresh, write, monkeypatch):
    helper = write("FACTOR = 1 / 0", "second_helper_of_mine.py")
    path = write(f"from second_helper_of_mine import FACTOR\n{textwrap.dedent(SHIFT)}")
    monkeypatch.syspath_prepend(str(helper.parent))
    with pytest.raises(UserError, match="ZeroDivisionError"):
        plugins.load(path)
    helper.write_text("FACTOR = 22")
    plugins.load(path)
    assert sys.modules.pop("second_helper_of_mine").FACTOR == 22


MODEL = """
    from timm.models import register_model

    @register_model
    def net_of_mine(pretrained=False, **kwargs): ...
"""


def test_a_refused_file_that_has_registered_a_model_needs_a_new_process(fresh, write):
    with pytest.raises(UserError, match="ValueError"):
        plugins.load(write(textwrap.dedent(MODEL) + "raise ValueError"))
    with pytest.raises(UserError, match="it had registered model 'net_of_mine', which timm"):
        plugins.load(write(MODEL))
    plugins.load(write(SHIFT, "another.py"))


def test_the_hash_of_a_plug_in_does_not_depend_on_what_was_imported_before(write, monkeypatch):
    path = write("from mypkg.util import X\nimport mypkg.part.deep")
    folder = path.parent / "src" / "mypkg"
    contents = {"__init__.py": b"", "part/deep.py": b"Y = 1", "util.py": b"X = 1"}
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    monkeypatch.syspath_prepend(str(path.parent / "src"))
    expected = hashlib.sha256(path.read_bytes())
    for name, content in contents.items():
        expected.update(b"\0src/mypkg/%b\0%d\0%b" % (name.encode(), len(content), content))
    source, beside = path.read_bytes(), LocalModules.of_file(path)
    assert code_hash(source, own_modules(path, source, beside), beside) == expected.hexdigest()
    importlib.import_module("mypkg.util")
    assert code_hash(source, own_modules(path, source, beside), beside) == expected.hexdigest()
    for name in ("mypkg", "mypkg.util"):
        del sys.modules[name]


def test_a_worker_finds_a_plug_in_by_any_of_its_paths(fresh, write):
    path = write(SHIFT)
    plugins.load(path)
    link = path.with_name("link.py")
    link.symlink_to(path)
    plugins.load_same({link: hashlib.sha256(path.read_bytes()).hexdigest()})


def test_a_worker_refuses_another_file_than_the_run_began_with(fresh, write):
    path = write(SHIFT)
    plugins.load(path)
    begun = plugins.loaded()
    assert begun[path] == hashlib.sha256(path.read_bytes()).hexdigest()
    plugins.load_same({path: begun[path]})
    with pytest.raises(UserError, match=f"a worker finds another plug-in {path}"):
        plugins.load_same({path: hashlib.sha256(b"another").hexdigest()})


def environments(**options):
    request = Request(models=("in_resnet20",), seeds=(0,), eps=(8 / 255,), n=4, device="cpu", **options)
    return {cell.perturbation.column: (cell.environment, cell.key) for cell in Benchmark(request).plan.cells}


def test_the_code_of_a_plug_in_is_in_the_key_of_its_cells_and_in_no_other(fresh, write):
    asked = {"attacks": "up,fgsm", "corruptions": "darker(severity=1),shot_noise(severity=1)"}
    with pytest.raises(UserError, match="unknown attack 'up'"):
        environments(**asked)
    found = []
    for file, source in (("old.py", SHIFT), ("new.py", SHIFT + "\n    # changed")):
        fresh()
        plugins.load(write(source, file))
        found.append(environments(**asked))
    first, second = found
    for column in ("clean", "fgsm_8", "shot_noise_1"):
        assert "plugin" not in first[column][0]
        assert first[column] == second[column]
    for column in ("up_8", "darker_1"):
        assert first[column][0]["plugin"].startswith("sha256:")
        assert first[column][1] != second[column][1]


@pytest.mark.slow
def test_what_older_code_of_a_plug_in_measured_does_not_stand_beside_newer(fresh, write, tmp_path):
    asked = {"seeds": (0,), "eps": (8 / 255,), "n": 4, "attacks": "up,fgsm", "corruptions": "none"}
    for model, source in (("in_resnet20", SHIFT), ("preact_resnet20", SHIFT + "\n    # changed")):
        fresh()
        plugins.load(write(source, f"for_{model}.py"))
        evaluate(model, device="cpu", out=tmp_path / "results", **asked)
    board = gather([tmp_path / "results"])[0].set_index("model")
    assert board["fgsm_8"].notna().all()
    assert board["up_8"].notna().to_dict() == {"in_resnet20": False, "preact_resnet20": True}


FACTOR = "FACTOR = {factor}"
IMPORTING = {
    "directly": ("from helper import FACTOR", {"helper.py": FACTOR}),
    "by name": ("import helper\nFACTOR = helper.FACTOR", {"helper.py": FACTOR}),
    "through another": (
        "from between import FACTOR",
        {"between.py": "from helper import FACTOR", "helper.py": FACTOR},
    ),
    "of a package": (
        "from parts.helper import FACTOR",
        {"parts/__init__.py": "", "parts/helper.py": FACTOR},
    ),
    "of a package that imports it": (
        "from parts import FACTOR",
        {"parts/__init__.py": "from .helper import FACTOR", "parts/helper.py": FACTOR},
    ),
    "from a package that it is in": (
        "from parts.helper import FACTOR",
        {"parts/__init__.py": "OWN = {factor}", "parts/helper.py": "from . import OWN as FACTOR"},
    ),
    "later": ("import importlib\ndef late():\n    import helper\nFACTOR = 0", {"helper.py": FACTOR}),
}


@pytest.mark.parametrize("how", IMPORTING)
def test_what_a_plug_in_imports_from_beside_itself_is_its_code(tmp_path, monkeypatch, fresh, how):
    line, files = IMPORTING[how]
    source = f"{line}\nfrom robust_interp.plugins import attack\n\n{textwrap.dedent(STEP)}"
    found = []
    for place, factor in (("one", 1), ("same", 1), ("other", -1)):
        fresh()
        folder = tmp_path / place
        for name, content in {"p.py": source, "idle.py": f"# {place}", **files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content.format(factor=factor))
        monkeypatch.syspath_prepend(str(folder))
        plugins.load(folder / "p.py")
        found.append(ATTACKS.code("stepping")["plugin"])
        for name in ("helper", "between", "parts", "parts.helper"):
            sys.modules.pop(name, None)
    assert found[0] == found[1] != found[2]


def test_a_plug_in_that_imports_nothing_from_beside_itself_keeps_its_code(fresh, write):
    path = write(SHIFT)
    (path.parent / "idle.py").write_text("FACTOR = 1")
    plugins.load(path)
    assert ATTACKS.code("up")["plugin"] == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_a_plug_in_whose_helper_changed_is_not_loaded_over_itself(fresh, write, monkeypatch):
    path = write("from helper_of_mine import FACTOR\n" + textwrap.dedent(SHIFT))
    monkeypatch.syspath_prepend(str(path.parent))
    helper = path.parent / "helper_of_mine.py"
    helper.write_text("FACTOR = 1")
    plugins.load(path)
    helper.write_text("FACTOR = 2")
    with pytest.raises(UserError, match="has changed since it was loaded"):
        plugins.load(path)
    del sys.modules["helper_of_mine"]


def test_what_an_installed_plug_in_imports_of_its_package_is_its_code(install, monkeypatch):
    found = []
    site = install("dist", {"attacks": {"idle": "dist_package.attacks:idle"}})
    package = site / "dist_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "attacks.py").write_text("from .helper import FACTOR\n" + textwrap.dedent(IDLE))
    for factor in ("1", "12", "1"):
        (package / "helper.py").write_text(f"FACTOR = {factor}")
        found.append(attacks_registry().code("idle")["plugin"])
    assert found[0] == found[2] != found[1]


@pytest.mark.slow
def test_an_attack_that_lacks_memory_is_run_in_smaller_batches(fresh, write, command, tmp_path):
    path = write(
        """
        import torch

        from robust_interp.plugins import attack

        @attack()
        def greedy(model, images, labels, *, eps):
            if len(images) > 2:
                raise torch.OutOfMemoryError("no room")
            return images
        """
    )
    asked = ("bench", "--plugin", path, "--attacks", "greedy", "--out", tmp_path / "out", *SMALL.split())
    status, _, err = command(*asked)
    assert status == 0, err
    assert "ran out of memory with batches of " in err
    assert "at most 2 images" in err


def test_a_data_set_that_lacks_memory_is_named(fresh, write):
    path = write(
        """
        from robust_interp.plugins import dataset

        @dataset(classes=2, shape=(1, 4, 4), mean=(0.5,), std=(0.5,), eps_255=(8,), default_n=10)
        def large(split, root):
            raise MemoryError
        """
    )
    plugins.load(path)
    with pytest.raises(UserError, match=r"large.* in mine\.py: line 6: MemoryError"):
        data.load("large")


@pytest.mark.slow
def test_an_error_in_an_attack_names_it_and_its_line(fresh, write, command, tmp_path):
    path = write(
        """
        from robust_interp.plugins import attack

        @attack()
        def clumsy(model, images, labels, *, eps):
            return images + labels.nothing
        """
    )
    status, out, err = command(
        "bench", "--plugin", path, "--attacks", "clumsy", "--out", tmp_path / "out", *SMALL.split()
    )
    assert (status, out) == (1, "")
    assert err.startswith("robust-interp: attack 'clumsy' in mine.py: line 6: AttributeError: ")
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ("images + eps * (2 * images - 1).sign()", "clumsy_8 returns values outside [0, 1]"),
        ("(images + 2 * eps).clamp(0, 1)", "clumsy_8 exceeds its radius"),
        ("(images, labels)", "clumsy_8 returns a tuple, not a tensor of images"),
        ("images[:1]", "clumsy_8 returns shape (1, 1, 8, 8) for (4, 1, 8, 8)"),
        ("images.to('meta')", "clumsy_8 returns images on meta for images on cpu"),
        ("images > 0.5", "clumsy_8 returns images of torch.bool, not of floating point"),
    ],
)
def test_what_an_attack_returns_wrongly_is_one_line(fresh, write, command, tmp_path, returned, why):
    path = write(
        f"""
        from robust_interp.plugins import attack

        @attack(gradient=False)
        def clumsy(model, images, labels, *, eps):
            return {returned}
        """
    )
    asked = ("--attacks", "clumsy", "--n", 4, "--eps", 8, "--out", tmp_path / "out")
    status, out, err = command("bench", "--plugin", path, *asked, *SMALL.split())
    assert (status, out) == (1, "")
    assert f"robust-interp: {why}" in err


@pytest.mark.slow
def test_an_attack_may_return_images_of_another_precision(fresh, write, command, tmp_path):
    path = write(
        """
        from robust_interp.plugins import attack

        def inverted(images, eps):
            return images + eps * (1 - 2 * images)

        @attack(gradient=False)
        def single(model, images, labels, *, eps):
            return inverted(images, eps)

        @attack(gradient=False)
        def double(model, images, labels, *, eps):
            return inverted(images.double(), eps)
        """
    )
    asked = ("--attacks", "single,double", "--n", 40, "--eps", 200, "--out", tmp_path / "out")
    status, _, err = command("bench", "--plugin", path, *SMALL.split(), *asked)
    assert status == 0, err
    rows = pd.read_csv(tmp_path / "out" / "results.csv").set_index("perturbation")
    assert rows.loc["double", "accuracy"] == rows.loc["single", "accuracy"] < 100
    assert rows["max_delta_255"].dropna().tolist() == [200, 200]  # of black and white pixels


@pytest.mark.slow
@pytest.mark.parametrize("returned", ["255 * image", "(image - 0.3) / 0.35", "(255 * image).astype(int)"])
def test_a_corruption_that_returns_no_pixels_is_one_line(fresh, write, command, tmp_path, returned):
    path = write(
        f"""
        from robust_interp.plugins import corruption

        @corruption
        def scaled(image, severity, rng):
            return {returned}
        """
    )
    asked = ("--corruptions", "scaled", "--attacks", "none", "--out", tmp_path / "out", "--n", 4)
    status, out, err = command("bench", "--plugin", path, *SMALL.split(), *asked)
    assert (status, out) == (1, "")
    assert "robust-interp: corruption 'scaled' returns no pixels" in err


NO_ARRAYS = {
    "a tensor with a gradient": "torch.tensor(image, requires_grad=True)",
    "a tensor on another device": "torch.zeros(image.shape, device='meta')",  # as one on CUDA
    "rows of several lengths": "[[1.0], [2.0, 3.0]]",
    "texts": "np.full(image.shape, 'x')",
    "objects": "np.full(image.shape, None)",
    "nothing": "None",
}


@pytest.mark.parametrize("returned", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_a_corruption_that_returns_no_array_of_numbers_is_one_line(fresh, write, returned):
    plugins.load(
        write(
            f"""
            import numpy as np
            import torch

            from robust_interp.plugins import corruption

            @corruption
            def odd(image, severity, rng):
                return {returned}
            """
        )
    )
    images = np.zeros((2, 1, 4, 4), np.uint8)
    with pytest.raises(UserError, match=r"^corruption 'odd' ") as refusal:
        corrupt(images, "odd", 1, [0, 1], seed=0)
    assert "\n" not in str(refusal.value)


WHOLE = """
    import numpy as np
    from timm.models import build_model_with_cfg, register_model
    from torch import nn

    from robust_interp.plugins import corruption, dataset

    class Flat(nn.Sequential):
        def __init__(self, num_classes=2, in_chans=1):
            super().__init__(nn.Flatten(), nn.Linear(16 * in_chans, num_classes))

    default_cfgs = {"of_a_file": {"num_classes": 2, "input_size": (1, 4, 4), "mean": (0.0,), "std": (1.0,)}}

    @register_model
    def of_a_file(pretrained=False, **arguments):
        return build_model_with_cfg(Flat, "of_a_file", pretrained, **arguments)

    @dataset(classes=2, shape=(1, 4, 4), mean=(0.5,), std=(0.5,), eps_255=(8,), default_n=10)
    def halves(split, root):
        images = np.zeros((10, 1, 4, 4), np.float32)
        images[1::2] = SCALE
        return images, np.arange(10) % 2

    @corruption
    def inverted(image, severity, rng):
        return 1 - image
"""


@pytest.mark.slow
def test_a_file_holds_a_whole_benchmark(fresh, write, command, tmp_path, monkeypatch):
    """The network says 1 for white and 0 for black: right on every image, wrong on every inverted one."""
    monkeypatch.chdir(tmp_path)
    path = write(WHOLE.replace("SCALE", "1"))
    weights = torch.stack([torch.full((16,), -1.0), torch.full((16,), 1.0)])
    torch.save({"1.weight": weights, "1.bias": torch.tensor([8.0, -8.0])}, "weights.pt")
    options = "--dataset halves --attacks none --corruptions inverted --device cpu --quiet"
    named = ["--models", "of_a_file", "--checkpoint", "weights.pt", "--plugin", path]
    status, _, err = command("bench", *named, *options.split())
    assert status == 0, err
    board = pd.read_csv("results/leaderboard.csv")
    assert board[["model", "clean", "inverted"]].values.tolist() == [["of_a_file", 100, 0]]
    assert command("ls", "models", "--plugin", path)[1].splitlines()[-1].split() == ["of_a_file", str(path)]


def test_what_a_dataset_of_a_plug_in_loads_is_checked(fresh, write, command, tmp_path):
    path = write(WHOLE.replace("SCALE", "255").replace("of_a_file", "of_another_file"))
    status, out, err = command("bench", "--plugin", path, "--dataset", "halves", "--out", tmp_path / "out")
    assert (status, out) == (1, "")
    assert err.startswith(
        "robust-interp: data set halves: images run from 0 to 255: inputs must be in [0, 1]"
    )
    assert err.count("\n") == 1


def test_a_merged_leaderboard_is_the_same_whatever_is_installed(fresh, write, tmp_path):
    """Built-in corruptions first; what a plug-in measured stands with the attacks, in the file's order."""
    from robust_interp.results import combine

    lines = ["rank,model,recipe,lambda_init,seeds,members,params_m,n_examples,protocol,clean,clean_std"]
    lines[0] += ",darker,darker_std,shot_noise,shot_noise_std,fgsm_2,fgsm_2_std,corruption_source,source"
    lines += [",net,quick,,1,1,0.2,10,final,90,0,80,0,70,0,60,0,generated@0,measured"]
    boards = [tmp_path / "one.csv", tmp_path / "two.csv"]
    for board in boards:
        board.write_text("\n".join(lines) + "\n")
    before = list(combine.gather(boards)[0].columns)
    plugins.load(write(SHIFT))
    assert list(combine.gather(boards)[0].columns) == before
    assert [c for c in before if f"{c}_std" in before] == ["clean", "shot_noise", "darker", "fgsm_2"]


@pytest.mark.slow
def test_only_what_timm_makes_public_is_used():
    public = {"timm", "timm.data", "timm.layers", "timm.models"}
    for file in (ROOT / "robust_interp").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.partition(".")[0] != "timm" or name in public, f"{file}: {name}"


# The commands.


def test_ls_says_where_each_comes_from(fresh, write, command):
    path = write(SHIFT)
    status, out, err = command("ls", "attacks", "--plugin", path)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "attacks:"
    origins = dict(line.split(maxsplit=1) for line in lines[1:] if not line.startswith("    "))
    assert origins["pgd"] == "robust-interp"
    assert origins["up"] == str(path)
    status, out, _ = command("ls")
    assert [line for line in out.splitlines() if not line.startswith(" ")] == [
        "models:",
        "attacks:",
        "corruptions:",
        "datasets:",
    ]
    assert "  in_resnet20" in out


@pytest.mark.slow
def test_ls_imports_neither_torch_nor_a_plug_in(install):
    site = install("eager", {"attacks": {"eager": "eager:attack"}}, "eager", "raise SystemExit('imported')")
    install("twice", {"attacks": {"pgd": "eager:attack"}})
    script = (
        "import sys; from robust_interp.cli.main import main; status = main(['ls']); "
        "print([m for m in ('torch', 'timm', 'eager') if m in sys.modules]); sys.exit(status)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], env=environment(site), capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[-1] == "[]"
    assert any(line.split() == ["eager", "eager", "1.0"] for line in lines)
    assert not any(line.split()[0] == "pgd" for line in lines)
    assert found.stderr == "warning: attack 'pgd' is declared by robust-interp and by twice 1.0\n"


def test_ls_check_says_which_plug_ins_are_broken(install, command, monkeypatch):
    install("broken", {"datasets": {"gone": "no_such_module:gone"}})
    registry = Registry("dataset", group="robust_interp.datasets", holds=data.DatasetType)
    registry.add("digits", data.DATASETS["digits"])
    monkeypatch.setitem(plugins.REGISTRIES, "datasets", registry)
    assert command("ls", "datasets")[0] == 0
    status, out, err = command("ls", "datasets", "--check")
    assert status == 1
    assert out.split() == ["datasets:", "digits", "robust-interp"]
    assert err == (
        "warning: dataset 'gone' of broken 1.0 cannot be used: ModuleNotFoundError: No module named "
        "'no_such_module'\n"
    )


@pytest.mark.exhaustive
@pytest.mark.slow
def test_data_names_a_broken_plug_in_and_goes_on(install, tmp_path):
    site = install("broken", {"datasets": {"gone": "no_such_module:gone"}})
    found = subprocess.run(
        [sys.executable, "-m", "robust_interp", "data", "--data-dir", str(tmp_path)],
        env=environment(site),
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0
    assert "digits: ready, 450 test images" in found.stdout
    assert found.stdout.count("data set 'gone' of broken 1.0 cannot be used: ModuleNotFoundError") == 1


def test_models_says_which_come_from_a_plug_in(install, command, monkeypatch):
    from robust_interp.cli import console

    install("shy", {"models": {"shy_net": "shy:shy_net"}}, "shy", "raise SystemExit")
    monkeypatch.setattr(console, "MODELS", Registry("model", group="robust_interp.models"))
    status, out, _ = command("models")
    assert status == 0
    assert out.startswith("robust-interp 0.")
    assert "plug-in: shy_net from shy 1.0" in out.splitlines()


def environment(site):
    paths = os.pathsep.join([str(ROOT), str(site)])
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


# The example package, installed and used as a user would.


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Where the example package is installed; hatchling builds it, and nothing is downloaded."""
    target = tmp_path_factory.mktemp("site")
    options = "--quiet --no-deps --no-index --no-build-isolation --disable-pip-version-check --target"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options.split(), str(target), str(EXAMPLE)], check=True
    )
    return target


@pytest.fixture
def use(site, tmp_path):
    """Runs commands of `robust-interp`, until one fails, in one process that has the example package."""

    def run(*lines):
        script = "import sys\nfrom robust_interp.cli.main import main\n"
        script += f"sys.exit(any(main(line.split()) for line in {lines!r}))"
        argv = [sys.executable, "-c", script]
        return subprocess.run(argv, env=environment(site), cwd=tmp_path, capture_output=True, text=True)

    return run


@pytest.mark.slow
def test_the_example_package_is_listed(use):
    found = use("ls")
    assert found.returncode == 0, found.stderr
    listed = dict(line.split(maxsplit=1) for line in found.stdout.splitlines() if line.startswith("  "))
    names = ("example_net8", "example_net16", "example_fast", "example_stripes", "bars")
    assert {listed[name] for name in names} == {"robust-interp-example 0.1.0"}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_example_package_is_trained_and_benched(use, tmp_path):
    done = use(
        "train example_net8 --dataset bars --recipe digits --epochs 6 --set batch_size=16 "
        "--out zoo --device cpu --quiet",
        "bench --models example_net8 --zoo zoo --dataset bars --n 40 --eps 8,32 --device cpu "
        "--attacks example_fast,fgsm --corruptions example_stripes(severity=5)",
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(next((tmp_path / "zoo").glob("*/train.json")).read_text())
    assert record["clean_accuracy"] > 50  # chance is 25
    results = pd.read_csv(tmp_path / "results" / "results.csv")
    assert set(results["model"]) == {"example_net8"}
    assert set(results["dataset"]) == {"bars"}
    assert results["max_delta_255"].dropna().tolist() == pytest.approx([8, 32, 8, 32], abs=1e-3)
    board = pd.read_csv(tmp_path / "results" / "leaderboard.csv").iloc[0]
    measured = [name for name in board.index if f"{name}_std" in board.index]
    assert measured == [
        "clean",
        "example_stripes_5",
        "example_fast_8",
        "example_fast_32",
        "fgsm_8",
        "fgsm_32",
    ]
    assert board["example_fast_32"] < board["clean"]
    with closing(sqlite3.connect(tmp_path / "results" / FILE_NAME)) as db:
        text = " ".join(str(row) for row in db.execute("SELECT * FROM runs"))
    assert "robust-interp-example 0.1.0 " in text


@pytest.mark.slow
def test_the_example_package_passes_the_checks(site):
    script = """
        from robust_interp import testing

        testing.check_dataset("bars")
        testing.check_attack("example_fast")
        testing.check_corruption("example_stripes")
        for name in ("example_net8", "example_net16"):
            testing.check_model(name, classes=4, shape=(1, 8, 8))
    """
    argv = [sys.executable, "-c", textwrap.dedent(script)]
    found = subprocess.run(argv, env=environment(site), capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_a_module_beside_a_plug_in_that_is_not_found_gets_a_hint(fresh, write):
    write("FACTOR = 2", "beside_the_plug_in.py")
    path = write("import beside_the_plug_in")
    told = f"'beside_the_plug_in'; it lies beside the plug-in: add {path.parent} to PYTHONPATH"
    with pytest.raises(UserError, match=re.escape(told)):
        plugins.load(path)
    with pytest.raises(UserError, match=r"No module named 'nowhere_at_all'$"):
        plugins.load(write("import nowhere_at_all", "other.py"))


def test_a_part_of_a_module_beside_a_plug_in_that_is_not_found_gets_no_hint(fresh, write, monkeypatch):
    """The folder is in the path already: the module itself was found."""
    monkeypatch.syspath_prepend(str(write("FACTOR = 2", "found_beside_it.py").parent))
    why = "No module named 'found_beside_it.part'; 'found_beside_it' is not a package"
    with pytest.raises(UserError, match=f"{why}$"):
        plugins.load(write("import found_beside_it.part"))
    del sys.modules["found_beside_it"]
