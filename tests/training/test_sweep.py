"""Sweeps: the paper's grids, seeds that fail, and the whole command on digits."""

import json
import shutil
from collections import Counter
from dataclasses import asdict

import pandas as pd
import pytest
from support.messages import one_line

from robust_interp import data, zoo
from robust_interp.core.errors import UserError
from robust_interp.results import paper
from robust_interp.training import job, sweep
from robust_interp.training import recipe as recipes
from robust_interp.training.sweep import Point
from robust_interp.training.trainer import TrainingError

CHECKPOINT = "in_resnet20.digits_digits_seed0"


def recipe_of(architecture, lambda_init):
    changes = {"epochs": 1} | ({"lambda_init": lambda_init} if lambda_init else {})
    return recipes.overridden(recipes.load("digits", architecture, "digits"), changes)


def test_the_papers_grids():
    """As printed: the baseline and two networks in five intervals; the baseline and four functions."""
    starts = sweep.GRIDS["initialisation"](110)
    assert [point.architecture for point in starts] == [
        "preact_resnet110",
        *["in_resnet110"] * 5,
        *["lambda_in_resnet110"] * 5,
    ]
    assert [point.lambda_init for point in starts[:6]] == [
        *(None, (0, 0.1), (0.1, 0.2), (0.2, 0.25), (0.25, 0.3), (0.3, 0.4))
    ]
    published = paper.reference("cifar10")
    for name in ("initialisation", "variants"):
        _, shows = paper.TABLES[name]
        table = set(published[published.apply(shows, axis=1)]["model"])
        assert {point.architecture for point in sweep.GRIDS[name](110)} == table


def test_a_network_without_lambda_is_trained_once():
    points = sweep.grid(["plain_net14", "in_resnet14"], [(0, 0.1), (0.1, 0.2)])
    assert points == [
        Point("plain_net14"),
        Point("in_resnet14", (0, 0.1)),
        Point("in_resnet14", (0.1, 0.2)),
    ]
    assert sweep.grid(["plain_net14", "in_resnet14"] * 2, [(0, 0.1), (0.1, 0.2), (0, 0.1)]) == points
    assert sweep.grid(["in_resnet14"] * 2, []) == [Point("in_resnet14")]
    with pytest.raises(UserError, match="in_resnet14"):
        sweep.grid(["in_resnet15"], [])


def test_failed_seeds_are_counted_and_the_others_go_on():
    def outcome(what):
        if what.architecture == "in_resnet14" and what.seed != 1:
            return TrainingError(f"seed {what.seed} diverged")
        return f"{what.architecture} {what.seed}"

    points = [Point("in_resnet14", (0.3, 0.4)), Point("preact_resnet14")]
    grid = sweep.trainings(points, recipe_of, (0, 1, 2))
    done = sweep.trained(grid, [outcome(what) for _, what in grid])
    assert done.checkpoints == [
        "in_resnet14 1",
        "preact_resnet14 0",
        "preact_resnet14 1",
        "preact_resnet14 2",
    ]
    assert done.failed == Counter({points[0]: 2})
    assert {what.recipe.name for _, what in grid} == {"digits_1epochs_lambda_init_0p3_0p4", "digits_1epochs"}
    with pytest.raises(UserError, match="no network of the grid is trained"):
        sweep.trained(grid[:1], [outcome(grid[0][1])])


def test_the_table_has_a_line_for_each_point_even_if_all_its_seeds_failed():
    points = [Point("in_resnet14", (0.3, 0.4)), Point("in_resnet14", (0.1, 0.2))]
    line = {"model": "in_resnet14", "lambda_init": "0.10-0.20", "seeds": 2, "clean": 91.0, "clean_std": 0.5}
    line |= {"recipe": "digits_1epochs_lambda_init_0p1_0p2", "members": 1}
    board = pd.DataFrame([line, line | {"members": 2, "clean": 99.0}])
    table = sweep.tabulate(points, board, Counter({points[0]: 3, points[1]: 1}), recipe_of)
    assert table[["lambda_init", "seeds", "failed"]].to_numpy().tolist() == [
        ["0.30-0.40", 0, 3],
        ["0.10-0.20", 2, 1],
    ]
    assert pd.isna(table["clean"][0])
    assert table["clean"][1] == 91.0


def test_the_table_finds_networks_whose_interval_is_the_recipes():
    def starting_at(architecture, lambda_init):
        return recipes.overridden(recipe_of(architecture, lambda_init), {"lambda_init": (0.3, 0.4)})

    line = {"model": "in_resnet14", "lambda_init": "0.30-0.40", "seeds": 2, "clean": 91.0, "clean_std": 0.5}
    line |= {"recipe": "digits_1epochs_lambda_init_0p3_0p4", "members": 1}
    table = sweep.tabulate([Point("in_resnet14")], pd.DataFrame([line]), Counter(), starting_at)
    assert table[["lambda_init", "seeds", "clean"]].to_numpy().tolist() == [["0.30-0.40", 2, 91.0]]


def test_every_network_of_a_grid_is_built_before_the_first_is_trained():
    grid = sweep.grid(["in_resnet14_sig"], [(0.2, 0.25), (0.0, 0.1)])  # the second is not for a sigmoid
    asked = [what for _, what in sweep.trainings(grid, recipe_of, (0,))]
    assert len(job.work(asked[:1], data.load("digits", "train"))) == 1
    with pytest.raises(UserError, match="strictly between 0 and 1"):
        job.work(asked, data.load("digits", "train"))


@pytest.mark.slow
def test_a_sweep_from_the_command_line_goes_on_where_it_was(command, tmp_path, monkeypatch):
    read, load = [], data.load
    monkeypatch.setattr(data, "load", lambda *given: read.append(given[1]) or load(*given))
    recipe = recipe_of("in_resnet14", (0.3, 0.4))
    failure = job.failure_file(
        job.destination(job.Training("in_resnet14", recipe, 1), "digits", tmp_path / "sweep" / "zoo")
    )
    failure.parent.mkdir(parents=True)
    settings = {"recipe": asdict(recipe.filled(data.DATASETS["digits"])), "seed": 1, "dataset": "digits"}
    settings |= {"data_fingerprint": load("digits", "train").fingerprint, "model_args": recipe.model_args()}
    failure.write_text(json.dumps({"failed": "training diverged"} | settings))
    sweeping = ("sweep", "--models", "in_resnet14,preact_resnet14", "--lambda-init", "0.3,0.4")
    sweeping += ("--epochs", "1", "--seeds", "2", "--attacks", "fgsm", "--eps", "16", "--corruptions", "none")
    sweeping += ("--n", "20", "--quiet", "--out", tmp_path / "sweep")
    status, shown, errors = command(*sweeping)
    assert status == 0
    assert "training diverged" in errors
    assert shown.count("clean accuracy") == 3
    assert read.count("train") == 1  # for four trainings and the time that they take
    table = pd.read_csv(tmp_path / "sweep" / "sweep.csv")
    assert table[["model", "seeds", "failed"]].to_numpy().tolist() == [
        ["in_resnet14", 1, 1],
        ["preact_resnet14", 2, 0],
    ]
    results = pd.read_csv(tmp_path / "sweep" / "results.csv")
    of_baseline = results[(results["model"] == "preact_resnet14") & (results["perturbation"] == "clean")]
    assert table["clean"][1] == pytest.approx(of_baseline["accuracy"].mean(), abs=0.005)
    before = (tmp_path / "sweep" / "sweep.csv").read_bytes()
    status, shown, _ = command(*sweeping)
    assert (status, shown.count("clean accuracy")) == (0, 0)  # nothing was trained again
    assert (tmp_path / "sweep" / "sweep.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "no grid given"),
        (("--grid", "variants", "--models", "in_resnet14"), "no grid given"),
        (("--grid", "variants", "--lambda-init", "0,1"), "--lambda-init needs --models"),
        (("--grid", "variants", "--depth", "21"), "unknown architecture 'preact_resnet21'"),
        (("--models", "in_resnet14", "--depth", "110"), "--depth needs --grid"),
        (
            ("--models", "plain_net14", "--lambda-init", "0.3,0.4"),
            "needs a model with λ; plain_net14 has none",
        ),
    ],
)
def test_what_cannot_be_swept_is_refused(command, arguments, complaint):
    status, _, errors = command("sweep", *arguments)
    assert status == 1
    assert complaint in errors


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)], ids=["run", "dry run"])
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--recipe", f"{200 * 'n'}.toml"), "and may have 215"),
        (("--set", "mean=0.1,0.2,0.3"), "mean"),  # digits are grey
        (("--workers", "2", "--device", "cpu", "--gpus-per-worker", "1"), "uses no GPU"),
        ((), "was trained with another digits, and now it says lr 0.1 instead of 0.5"),
    ],
    ids=["name", "recipe", "workers", "other recipe"],
)
def test_a_grid_that_could_not_be_trained_is_refused_in_a_dry_run_too(
    command, tmp_path, monkeypatch, options, complaint, dry_run
):
    monkeypatch.setattr(data, "load", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{200 * 'n'}.toml").write_text('extends = "digits"')
    if not options:
        made = shutil.copytree(zoo.bundled() / CHECKPOINT, tmp_path / "sweep" / "zoo" / CHECKPOINT)
        record = json.loads((made / "train.json").read_text())
        record["recipe"]["lr"] = 0.5
        (made / "train.json").write_text(json.dumps(record))
    before = sorted(tmp_path.rglob("*"))
    sweeping = ("sweep", "--models", "in_resnet20", "--seeds", "1", "--quiet")
    status, shown, errors = command(*sweeping, *options, *dry_run)
    assert (status, shown) == (1, "")
    one_line(errors, complaint)
    assert sorted(tmp_path.rglob("*")) == before  # no store


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)], ids=["run", "dry run"])
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--n", "451"), "n must be 1 to 450"),
        (("--attacks", "pgd(nosuch=1)"), "nosuch"),
        (("--attacks", "autoattack"), "autoattack needs an extra package"),
        (("--device", "cuda:99"), "cannot use device 'cuda:99'"),
        (("--dataset", "cifar10", "--data-dir", "nowhere"), "nowhere"),
    ],
    ids=["n", "attack", "package", "device", "data"],
)
def test_a_grid_that_could_not_be_measured_is_refused_before_it_is_trained(
    command, tmp_path, monkeypatch, options, complaint, dry_run
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("robust_interp.attacks.properties.AUTOATTACK_PACKAGES", ())
    status, shown, errors = command("sweep", "--models", "in_resnet14", "--quiet", *options, *dry_run)
    assert (status, shown) == (1, "")
    one_line(errors, complaint)
    assert not list(tmp_path.iterdir())  # no store


@pytest.mark.slow
def test_claims_about_intervals_look_past_the_name_of_a_sweeps_recipes():
    line = {"model": "in_resnet14", "members": 1, "seeds": 1, "n_examples": 1000, "protocol": "final"}
    line |= {"source": "measured", "clean_std": float("nan"), "corruption_source": ""}
    starts = [("0.00-0.10", "digits_lambda_init_0p0_0p1", 90.0), ("0.10-0.20", "digits", 80.0)]
    lines = [line | {"lambda_init": i, "recipe": r, "clean": c} for i, r, c in starts]
    claims = paper.compare(pd.DataFrame(lines), "cifar10").claims
    (found,) = claims[
        claims["claim"].str.startswith("clean accuracy falls") & (claims["source"] == "measured")
    ]["verdict"]
    assert found == "holds for these weights"


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_a_checkpoint_of_the_same_name_in_the_working_directory_is_refused_at_once(
    command, tmp_path, monkeypatch, dry_run
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(zoo.bundled() / CHECKPOINT, tmp_path / CHECKPOINT)
    options = ("--models", "in_resnet20", "--seeds", "1", "--quiet", *dry_run)
    status, shown, errors = command("sweep", *options)
    assert (status, shown) == (1, "")
    one_line(errors, f"./{CHECKPOINT} would be measured in place")
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]
