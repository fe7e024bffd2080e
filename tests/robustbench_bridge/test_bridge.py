"""RobustBench both ways: the real package on our models, our JSON in it, its published rows beside ours.

The package comes from pip at test time, into a folder of its own: its wheel pins another timm, and
torchattacks' stub of the same name stays where it is. Without it these tests are skipped; where the
environment variable CI is set, they fail instead.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.hand_made import attack, card, corruption, ensemble, first, measured, run
from support.prerequisites import missing

import robust_interp
from robust_interp import data, robustbench_bridge, zoo
from robust_interp.core.errors import UserError
from robust_interp.results import combine, robustbench_json
from robust_interp.results.columns import ENTRY_COLUMNS, SOURCE_COLUMNS
from robust_interp.store import INHERITED, Outcome, Store
from robust_interp.store.cells import CLEAN

PACKAGE = Path(robust_interp.__file__).parents[1]
ROWS = Path(__file__).parents[2] / "leaderboards" / "robustbench.csv"
REAL = ["robustbench==1.1.1", "pyautoattack", "torchdiffeq", "geotorch", "gdown==5.1.0"]
REAL += ["beautifulsoup4", "soupsieve"]  # gdown's


@pytest.fixture(scope="session")
def probed(tmp_path_factory):
    """What probe.py found with the real package."""
    packages, folder = tmp_path_factory.mktemp("packages"), tmp_path_factory.mktemp("probe")
    options = ["--quiet", "--disable-pip-version-check", "--retries=1", "--no-deps", f"--target={packages}"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *REAL], capture_output=True, text=True, check=False
    )
    if done.returncode:
        complaint = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        missing(f"pip has no {REAL[0]}: {complaint}")
    robustbench_json.write(board(), "cifar10", folder / "model_info", 8.0, robustbench_json.Paper())
    done = subprocess.run(
        [sys.executable, "-Wignore", Path(__file__).with_name("probe.py"), folder],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(map(str, [packages, PACKAGE])), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def board(**more):
    """A leaderboard of four lines: with AutoAttack in both norms, without, of the paper, an ensemble."""
    lines = {
        "model": ["in_resnet20", "preact_resnet20", "in_resnet110", "in_resnet20"],
        "recipe": ["quick", "quick", "paper", "quick"],
        "seeds": [3, 1, 5, 3],
        "members": [1, 1, 1, 3],
        "n_examples": [200, 200, 10000, 200],
        "clean": [81.5, 80.0, 93.2, 84.0],
        "pgd_8": [3.0, 2.0, 1.0, 4.0],
        "autoattack_8": [1.25, None, 60.0, 2.0],
        "autoattack_l2_0.5": [0.5, None, None, None],
        "common15": [None, 55.555, None, None],
        "corruption_source": ["", "generated@0", "", ""],
        "source": ["measured", "measured", "paper", "measured"],
    }
    return pd.DataFrame(lines | more)


# --- our models in RobustBench ------------------------------------------------------------------------


@pytest.mark.slow
def test_load_model_gives_our_checkpoint_on_pixels(probed):
    aliases = probed["aliases"]
    assert all(far < 1e-4 for far in aliases["far"].values())
    assert len(aliases["far"]) == 3
    assert aliases["custom"] < 1e-4, "a checkpoint of the bare network fits, too"
    assert not aliases["training"]
    assert aliases["mean_std"] == [0, 0, 0, 1, 1, 1]
    assert aliases["cifar100"], "no checkpoint, no name"


def test_the_names_are_hidden_from_ours(command):
    import timm

    from robust_interp.robustbench_bridge import robustbench_names

    assert "in_resnet20_cifar10_linf" not in timm.list_models(), "not before the bridge is entered"
    robustbench_names.register(zoo.checkpoints())
    hidden = timm.list_models(module="robustbench_names")
    assert "in_resnet20_cifar10_linf" in hidden
    assert not set(hidden) & set(timm.list_models(module="in_resnet"))
    chosen = zoo.select(["all", "in_*"], zoo.checkpoints(dataset="cifar10"))
    assert not [checkpoint.name for checkpoint in chosen if "linf" in checkpoint.name]
    assert "_linf" not in command("models")[1]
    with pytest.raises(UserError) as raised:
        zoo.create("in_resnet20_cifar10_lin")
    assert "_linf" not in str(raised.value)


def test_a_name_without_its_weights_is_an_untrained_network_on_pixels():
    import timm

    from robust_interp.robustbench_bridge import robustbench_names

    robustbench_names.register(zoo.checkpoints())
    name = "in_resnet20_cifar10_linf"
    first, second, trained = (timm.create_model(name, pretrained=given) for given in (False, False, True))
    weights = [dict(model.named_parameters()) for model in (first, second, trained)]
    assert weights[0].keys() == weights[2].keys()
    drawn = [key for key, weight in weights[0].items() if weight.ndim == 4]
    assert drawn
    for key in drawn:
        assert not torch.equal(weights[0][key], weights[1][key]), "each call draws"
        assert not torch.equal(weights[0][key], weights[2][key])
    images = torch.rand(2, 3, 32, 32)
    cifar10 = data.DATASETS["cifar10"]
    mean, std = (torch.tensor(given).view(3, 1, 1) for given in (cifar10.mean, cifar10.std))
    bare = timm.create_model("in_resnet20", num_classes=10)
    bare.load_state_dict(first.state_dict())
    assert torch.allclose(first.eval()(images), bare.eval()((images - mean) / std), atol=1e-5)
    other = timm.create_model(name, pretrained=False, num_classes=7)
    assert other(images).shape == (2, 7)


def test_of_several_checkpoints_the_longest_training_and_its_lowest_seed_is_meant(tiny_zoo, tmp_path):
    from robust_interp.robustbench_bridge.robustbench_names import chosen

    source = tiny_zoo / "preact_resnet14.digits_none_seed0"
    trained = {
        "along_seed3": 60,  # the first in the zoo's order
        "blong_seed1": 60,
        "clong_seed1": 60,
        "short_seed0": 6,
        "unknown_seed0": None,
        "spoilt_seed0": 70,
    }
    for name, epochs in trained.items():
        folder = tmp_path / f"preact_resnet14.cifar10_{name}"
        folder.mkdir()
        for file in source.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        record = json.loads((folder / "train.json").read_text())
        record.pop("curve", None)
        curve = {} if epochs is None else {"curve": [{"epoch": 1 + i} for i in range(epochs)]}
        (folder / "train.json").write_text(json.dumps(record | curve))
    (tmp_path / "preact_resnet14.cifar10_spoilt_seed0" / "config.json").write_text("{")
    broken = tmp_path / "in_resnet14.cifar10_long_seed0"
    broken.mkdir()
    candidates = [c for c in zoo.checkpoints(tmp_path) if c.folder.parent == tmp_path]
    for one_order in (candidates, candidates[::-1]):
        assert [c.name for c in chosen(one_order)] == ["preact_resnet14.cifar10_blong_seed1"]


# --- RobustBench's evaluation -------------------------------------------------------------------------


@pytest.mark.slow
def test_benchmark_with_autoattack_finds_the_closed_form(probed):
    # Six images: one wrong when clean, and the radius is set between the fourth and the fifth.
    for threat_model in ("Linf", "L2"):
        assert probed["attacked"][threat_model] == pytest.approx([5 / 6, 2 / 6])
    # In L2 the attack also kept its state, and wrote a log.
    assert probed["attacked"]["log"] == "robust accuracy: 33.33%"
    assert "cannot resume from its state" in probed["attacked"]["resumed"]


@pytest.mark.slow
def test_benchmark_on_corruptions_needs_no_alexnet(probed):
    # Of 20 images 2 s are wrong at severity s of the one corruption, none of the other: 0.7 and 1.
    corrupted = probed["corrupted"]
    assert corrupted["accuracies"] == [pytest.approx([1, 0.85])] * 2
    assert (corrupted["json"]["corruptions_acc"], corrupted["json"]["corruptions_mce"]) == ("85.0", "15.0")
    assert [line.split(",")[0] for line in corrupted["table"]] == ["", "", "One", "Two"]
    assert corrupted["table"][2].split(",")[1:6] == ["0.9", "0.8", "0.7", "0.6", "0.5"]
    assert corrupted["absent"] == "CIFAR-10-C is not in none: unpack the released CIFAR-10-C.tar there"


@pytest.mark.slow
def test_what_was_mended_is_as_before_afterwards(probed):
    assert probed["left"] == []
    assert probed["aliased"]


def test_an_autoattack_that_is_installed_is_taken_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "autoattack.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert "autoattack" not in robustbench_bridge.bridge.missing_modules()


def test_the_stub_of_torchattacks_is_told_from_robustbench(tmp_path, monkeypatch):
    (tmp_path / "robustbench").mkdir()
    (tmp_path / "robustbench" / "__init__.py").touch()
    (tmp_path / "robustbench" / "eval.py").write_text("def evaluate(): pass\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(UserError, match="RobustBench is not installed"), robustbench_bridge.robustbench():
        pass
    (tmp_path / "robustbench-1.1.1.dist-info").mkdir()
    (tmp_path / "robustbench-1.1.1.dist-info" / "METADATA").write_text("Name: robustbench\nVersion: 1.1.1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    mend = "pip install --force-reinstall --no-deps robustbench"
    with pytest.raises(UserError, match=mend), robustbench_bridge.robustbench():
        pass


def test_a_robustbench_that_is_built_otherwise_is_refused_by_name(tmp_path, monkeypatch):
    package, info = tmp_path / "robustbench", tmp_path / "robustbench-2.0.dist-info"
    package.mkdir()
    info.mkdir()
    (info / "METADATA").write_text("Name: robustbench\nVersion: 2.0\n")
    known = ["CORRUPTIONS_DICT", "_clean_dataset_loaders", "_load_dataset", "datasets", "zenodo_download"]
    for module, names in {"__init__": [], "data": known, "utils": ["load_model"]}.items():
        (package / f"{module}.py").write_text("".join(f"{name} = None\n" for name in names))
    names = "AutoAttack all_models clean_accuracy corruptions_evaluation"
    (package / "eval.py").write_text(f"def benchmark(): pass\n{' = '.join(names.split())} = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "robustbench"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError) as refusal, robustbench_bridge.robustbench():
        pass
    for name in [name for name in sys.modules if name.partition(".")[0] == "robustbench"]:
        del sys.modules[name]
    said = str(refusal.value)
    assert said.startswith(
        "robustbench.utils has no download_gdrive_new: only RobustBench 1.1.1 is supported"
    )
    assert "\n" not in said


# --- RobustBench's models -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_of_its_zoo_loads_from_weights_that_are_there(probed):
    assert probed["zoo"]["far"] == 0
    assert probed["zoo"]["far as a classifier"] < 1e-4  # which may use another memory layout
    # the published clean accuracy, against which a run is held
    assert probed["zoo"]["card"] == ["Hendrycks2020AugMix_WRN(threat=corruptions)", 95.08]
    assert probed["zoo"]["sha256"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            "missing",
            "weights/cifar10/corruptions/Hendrycks2020AugMix_WRN.pt: run robust-interp robustbench download",
        ),
        ("of a list", "Chen2020Adversarial.pt_m0.pt"),
        ("of timm", "debenedetti2022light-xcit-s-cifar10-linf.pth.tar"),
        ("unknown", "did you mean Hendrycks2020AugMix_WRN"),
        ("threat", "'L1' of RobustBench is not one of Linf, L2, corruptions"),
        ("page", "Hendrycks2020AugMix_WRN.pt is an HTML page"),
        ("code", "Weights only load failed"),
        ("parameter", "the only argument is threat=Linf, L2 or corruptions, not eps"),
        ("checkpoint", "--checkpoint needs exactly one"),
        ("quota", "Hendrycks2020AugMix_WRN.pt is an HTML page"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_one_line(probed, case, said):
    assert said in probed["zoo"][case]
    assert "\n" not in probed["zoo"][case]


@pytest.mark.slow
def test_data_are_not_fetched_unasked(probed):
    said = "CIFAR10 is not in none: run robust-interp data cifar10 --download --data-dir none"
    assert probed["aliases"]["no data"] == said


@pytest.mark.slow
def test_weights_are_fetched_only_when_asked_and_by_their_id(probed):
    assert probed["zoo"]["untouched"]
    assert probed["zoo"]["asked"]


# --- our rows as RobustBench's JSON -------------------------------------------------------------------


@pytest.mark.slow
def test_its_readers_take_our_json(probed):
    assert probed["read_back"]["entries"] == {
        "model_info/cifar10/L2/in_resnet20_quick.json": "0.50",
        "model_info/cifar10/Linf/in_resnet20_quick.json": "1.25",
        "model_info/cifar10/Linf/in_resnet20_quick_x3.json": "2.00",
        "model_info/cifar10/Linf/preact_resnet20_quick.json": None,
        "model_info/cifar10/corruptions/preact_resnet20_quick.json": None,
    }
    assert r"\citet{in} & 81.50 & 0.50 & N & in_resnet20 & " in probed["read_back"]["table"]


def test_a_vote_over_several_draws_is_so_many_forward_passes(tmp_path):
    paper = robustbench_json.Paper("A title", "A and B", "https://example.org", "ICML 2020", True)
    voted = board().assign(eot=pd.array([20, pd.NA, pd.NA, pd.NA], dtype="Int64"))
    robustbench_json.write(voted, "cifar10", tmp_path, 8.0, paper)
    found = {
        path.stem: json.loads(path.read_text())["number_forward_passes"]
        for path in (tmp_path / "cifar10" / "Linf").iterdir()
    }
    assert found["in_resnet20_quick"] == 20
    assert found["preact_resnet20_quick"] == 1


def test_pgd_never_passes_for_autoattack(tmp_path):
    paper = robustbench_json.Paper("A title", "A and B", "https://example.org", "ICML 2020", True)
    robustbench_json.write(board(), "cifar10", tmp_path, 8.0, paper)
    place = tmp_path / "cifar10"
    attacked = json.loads((place / "Linf" / "in_resnet20_quick.json").read_text())
    assert attacked == {
        "link": "https://example.org",
        "name": "A title",
        "authors": "A and B",
        "additional_data": True,
        "number_forward_passes": 1,
        "dataset": "cifar10",
        "venue": "ICML 2020",
        "architecture": "in_resnet20",
        "eps": "8/255",
        "clean_acc": "81.50",
        "reported": None,
        "autoattack_acc": "1.25",
        "footnote": "n = 200; mean over 3 seeds",
    }
    other = json.loads((place / "Linf" / "preact_resnet20_quick.json").read_text())
    assert "autoattack_acc" not in other
    assert other["footnote"] == "n = 200; not measured with AutoAttack at 8/255"
    corrupted = json.loads((place / "corruptions" / "preact_resnet20_quick.json").read_text())
    assert corrupted["footnote"] == "n = 200; not on the released images (generated@0)"
    assert json.loads((place / "L2" / "in_resnet20_quick.json").read_text())["eps"] == "0.5"
    assert not list(place.rglob("in_resnet110*")), "only what was measured here"


def test_an_ensemble_of_one_train_seed_is_called_one(tmp_path):
    mixed = board().iloc[[3]].assign(model="in_resnet20+preact_resnet20", seeds=1, members=2)
    paper = robustbench_json.Paper("A title", "A and B", "https://example.org", "ICML 2020", True)
    robustbench_json.write(mixed, "cifar10", tmp_path, 8.0, paper)
    (path,) = (tmp_path / "cifar10" / "Linf").iterdir()
    assert json.loads(path.read_text())["footnote"] == "n = 200; ensemble of 2"


def test_two_lines_of_one_name_are_refused(tmp_path):
    twice = pd.concat([board(), board()], ignore_index=True).assign(protocol="final")
    told = r"two rows would be written to .* \(n = 200, final and n = 200, final\): run robust-interp bench"
    with pytest.raises(UserError, match=told):
        robustbench_json.write(twice, "cifar10", tmp_path, 8.0, robustbench_json.Paper())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_export_writes_what_a_results_folder_holds(command, tiny_zoo, tmp_path):
    out, results = tmp_path / "model_info", tmp_path / "results"
    run = [
        "bench",
        "--models",
        "in_resnet14",
        "--zoo",
        tiny_zoo,
        "--n",
        "8",
        "--attacks",
        "fgsm",
        "--eps",
        "8",
    ]
    assert command(*run, "--corruptions", "none", "--out", results)[0] == 0
    status, printed, said = command("robustbench", "export", results, "--out", out, "--venue", "here")
    assert status == 0
    assert said.startswith(
        "warning: no autoattack_acc for in_resnet14_none, in_resnet14_none_x2: not measured with AutoAttack "
        "at 8/255 (robust-interp bench --attacks autoattack --eps 8 --protocol worst, into a folder of its "
        "own)"
    )
    assert printed.splitlines() == [str(path) for path in sorted(out.rglob("*.json"))]
    entry = json.loads((out / "digits" / "Linf" / "in_resnet14_none.json").read_text())
    assert entry["venue"] == "here"
    assert "autoattack_acc" not in entry
    status, _, said = command("robustbench", "export", results, "--eps", "4,8")
    assert (status, "more than one radius" in said) == (2, True)


@pytest.mark.parametrize(
    ("asked", "written"),
    [("8", "8/255"), ("4", "4/255"), ("2", "8/255"), ("1", "1/255")],  # 2 was attacked by nothing under Linf
)
def test_the_radius_is_one_at_which_the_line_was_attacked(command, tmp_path, asked, written):
    with Store(tmp_path / "results") as store:
        attacks = [attack("fgsm", 1), attack("pgd", 4), attack("fgsm", 8), attack("pgd", 16)]
        run(store, [(card(), CLEAN, first(9)), *((card(), each, first(5)) for each in attacks)])
    out = tmp_path / "out"
    status, _, said = command("robustbench", "export", tmp_path / "results", "--out", out, "--eps", asked)
    assert status == 0
    assert f"not measured with AutoAttack at {asked}/255" in said
    entry = json.loads((out / "digits" / "Linf" / "net_quick.json").read_text())
    assert (entry["eps"], entry["footnote"]) == (
        written,
        f"n = 10; not measured with AutoAttack at {asked}/255",
    )


def store_with_autoattack(folder, by_seed):
    """Store a run with protocol worst, and AutoAttack for the seeds that FGSM attacked at 8/255."""
    lines = [
        (card(seed=seed), perturbation, first(right))
        for seed, attacked in by_seed.items()
        for perturbation, right in ((CLEAN, 9), *((attack("fgsm", eps), 6) for eps in attacked))
    ]
    with Store(folder) as store:
        plan = measured(store, lines, "worst")
        cells = list(plan.cells)
        for clean, fgsm in zip(plan.cells, plan.cells[1:], strict=False):
            if clean.perturbation == CLEAN and fgsm.perturbation == attack("fgsm", 8):
                auto = replace(fgsm, perturbation=attack("autoattack", 8), skips=(clean.key, fgsm.key))
                predictions = np.array([0, 1, 2, 3, 5, 6, -1, -1, -1, -1])
                flags = np.where(predictions < 0, INHERITED, 0).astype(np.uint8)
                store.append(auto.key, 0, Outcome(predictions, flags, np.zeros(10, np.float32), 2.0, "cpu"))
                cells.append(auto)
        store.put_plan(replace(plan, cells=tuple(cells)))


def test_autoattack_as_a_part_of_worst_for_one_of_two_seeds_gives_no_bound(command, tmp_path):
    store_with_autoattack(tmp_path / "results", {0: (8,), 1: (4,)})
    out = tmp_path / "out"
    assert command("robustbench", "export", tmp_path / "results", "--out", out, "--eps", "8")[0] == 0
    entry = json.loads((out / "digits" / "Linf" / "net_quick.json").read_text())
    why = "AutoAttack at 8/255 was only run as a part of worst(fgsm+autoattack)"
    assert entry["footnote"] == f"n = 10; mean over 2 seeds; {why}"


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_autoattack_as_a_part_of_worst_is_told_as_that_and_as_no_accuracy_of_its_own(
    command, tmp_path, seeds
):
    """It attacked what FGSM had left: 4 of 10 are right under both, and maybe more under it alone."""
    store_with_autoattack(tmp_path / "results", dict.fromkeys(seeds, (8, 4)))
    out = tmp_path / "out"
    status, _, said = command("robustbench", "export", tmp_path / "results", "--out", out, "--eps", "8")
    assert status == 0
    why = (
        "AutoAttack at 8/255 was only run as a part of worst(fgsm+autoattack), whose accuracy 40.00 is a "
        "lower bound of its own"
    )
    assert f"no autoattack_acc for net_quick: {why} (robust-interp bench --attacks autoattack --eps 8" in said
    entry = json.loads((out / "digits" / "Linf" / "net_quick.json").read_text())
    assert "autoattack_acc" not in entry
    assert entry["footnote"].endswith(why)
    assert command("robustbench", "export", tmp_path / "results", "--out", out, "--eps", "4")[2].startswith(
        "warning: no autoattack_acc for net_quick: not measured with AutoAttack at 4/255"
    )


def test_a_line_that_was_not_attacked_has_no_radius(command, tmp_path):
    with Store(tmp_path / "results") as store:
        run(store, [(card(), CLEAN, first(9)), (card(), corruption("fog", 1), first(8))])
    assert command("robustbench", "export", tmp_path / "results", "--out", tmp_path / "out")[0] == 0
    entry = json.loads((tmp_path / "out" / "digits" / "Linf" / "net_quick.json").read_text())
    assert (entry["eps"], "autoattack_acc" in entry) == (None, False)


def test_what_an_ensemble_left_standing_of_transferred_attacks_is_not_exported(command, tmp_path):
    whole = ensemble(card(seed=0), card(seed=1))
    moved = replace(whole, model="net(member:0)", attacked_as="member:0")
    with Store(tmp_path / "results") as store:
        measured = [(whole, CLEAN, first(9)), (moved, CLEAN, first(9))]
        run(store, [*measured, *((one, attack("autoattack", 8), first(7)) for one in (whole, moved))])
    assert command("robustbench", "export", tmp_path / "results", "--out", tmp_path / "out")[0] == 0
    assert [path.name for path in (tmp_path / "out").rglob("*.json")] == ["net_quick_x2.json"]


# --- its published rows beside ours -------------------------------------------------------------------

# As RobustBench published them: dataset, model, threat model; clean, and robust under which measure.
PUBLISHED = [
    ("cifar10", "Standard", "Linf", {"clean": 94.78, "autoattack_8": 0.0}),
    ("cifar10", "Standard", "corruptions", {"clean": 94.78, "common15": 73.46}),
    ("cifar10", "Augustin2020Adversarial", "L2+data", {"clean": 91.08, "autoattack_l2_0.5": 72.91}),
    (
        "cifar10",
        "Amini2024MeanSparse_S-WRN-70-16",
        "L2+data",
        {"clean": 95.51, "autoattack_l2_0.5": 87.28, "external_l2_0.5": 84.33},
    ),
    (
        "cifar100",
        "Amini2024MeanSparse_S-WRN-70-16",
        "Linf+data",
        {"autoattack_8": 44.78, "external_8": 42.25},
    ),
    ("cifar100", "Erichson2022NoisyMix", "corruptions", {"clean": 81.16, "common15": 72.06}),
    ("imagenet", "Standard_R50", "Linf", {"clean": 76.52, "autoattack_4": 0.0}),
]


@pytest.mark.parametrize(("dataset", "model", "recipe", "numbers"), PUBLISHED)
def test_published_rows(dataset, model, recipe, numbers):
    rows = combine.read(ROWS, dataset)
    (row,) = rows[(rows["model"] == model) & (rows["recipe"] == recipe)].to_dict("records")
    measured = {name: row[name] for name in rows if f"{name}_std" in rows and not pd.isna(row[name])}
    assert numbers.items() <= measured.items()
    assert len(measured) == len(numbers) + ("clean" not in numbers), "nothing else is filled"
    assert row["source"] == "robustbench"


def test_all_published_rows_are_there():
    rows = pd.read_csv(ROWS)
    counts = rows.groupby(["dataset", rows["recipe"].str.removesuffix("+data")]).size().to_dict()
    assert counts == {
        ("cifar10", "L2"): 21,
        ("cifar10", "Linf"): 99,
        ("cifar10", "corruptions"): 23,
        ("cifar100", "Linf"): 38,
        ("cifar100", "corruptions"): 13,
        ("imagenet", "Linf"): 30,
        ("imagenet", "corruptions"): 12,
    }
    # Six entries were attacked at 0.031, which is not 8/255.
    assert rows["autoattack_7.905"].count() == 6
    assert [*rows][:1] + [*rows][-3:] == ["dataset", "audit", *SOURCE_COLUMNS]
    assert [*rows][1 : 1 + len(ENTRY_COLUMNS)] == ENTRY_COLUMNS


def test_rows_that_robustbench_flags_are_flagged():
    rows = combine.read(ROWS, "cifar10")
    flagged = rows[rows["audit"] != ""]
    assert dict(zip(flagged["model"], flagged["audit"], strict=True)) == {
        "Kang2021Stable": "unreliable",
        "Xiao2020Enhancing": "unreliable",
    }
    # AutoAttack's number, and that of an external evaluation: 71.28 and 64.20, 18.50 and 7.40
    assert list(flagged["autoattack_8"].dropna() - flagged["external_8"].dropna()) == pytest.approx([7.08])


@pytest.mark.slow
def test_published_rows_stand_beside_ours_and_are_never_ranked(command):
    ours = ROWS.with_name("cifar10.csv")
    both, _, _ = combine.gather([ours, ROWS], "cifar10")
    assert both["rank"].isna().all()
    assert both["source"].value_counts().to_dict() == {"robustbench": 143, "measured": len(pd.read_csv(ours))}
    assert combine.read(ROWS, "cifar10")["rank"].isna().all()
    status, shown, _ = command(
        "leaderboard", ours, ROWS, "--dataset", "cifar10", "--sort", "autoattack_8", "--format", "json"
    )
    assert status == 0
    first = json.loads(shown)[0]
    assert (first["model"], first["autoattack_8"], first["pgd_4"]) == (
        "Amini2024MeanSparse_S-WRN-94-16",
        75.28,
        None,
    )


def test_rows_on_several_datasets_are_never_in_one_table(command):
    said = command("leaderboard", ROWS)[2]
    assert "has rows for cifar10, cifar100, imagenet: choose one with --dataset" in said
    assert "has no row for digits" in command("leaderboard", ROWS, "--dataset", "digits")[2]
