"""The benchmark from Python: numbers worked out by hand for a linear model, and checks on real networks."""

import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from support.stored import chunks
from support.watching import Counting
from torch import nn

import robust_interp
from robust_interp import data, zoo
from robust_interp.benchmark import cost as timing
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.cost import cost
from robust_interp.benchmark.request import Request
from robust_interp.benchmark.watch import Watch
from robust_interp.cli.main import main
from robust_interp.core.errors import UserError
from robust_interp.results.columns import RESULT_COLUMNS
from robust_interp.store import Store

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # findings; test_sanity.py has them


class Threshold(nn.Module):
    """Two classes of one-pixel images: class 1 where the pixel is above one half."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(4.0))

    def forward(self, images):
        signed = self.scale * (images.flatten(1) - 0.5)
        return torch.cat([-signed, signed], dim=1)


# Pixels and labels: eight are right, at these distances from the threshold, and two are wrong.
#          .05   .05   .12   .15   .20   .30   .45   .45  wrong wrong
PIXELS = (0.55, 0.45, 0.62, 0.35, 0.70, 0.20, 0.95, 0.05, 0.30, 0.90)
LABELS = (1, 0, 1, 0, 1, 0, 1, 0, 1, 0)
IMAGES = np.array(PIXELS, dtype=np.float32).reshape(-1, 1, 1, 1)


def evaluate(**options):
    usual = {"attacks": "fgsm,ifgsm", "corruptions": "none", "eps": (8 / 255, 26 / 255, 64 / 255)}
    return robust_interp.evaluate({"net": Threshold()}, (IMAGES, np.array(LABELS)), **usual | options)


def accuracies(table):
    """Accuracy by perturbation and radius, e.g. ``fgsm 8``."""
    return {
        f"{line.perturbation.partition('(')[0]} {line.eps_255:g}"
        if pd.notna(line.eps_255)
        else line.perturbation: line.accuracy
        for line in table.itertuples()
    }


@pytest.mark.slow
def test_a_linear_models_numbers_are_those_worked_out_by_hand(tmp_path):
    table = evaluate(out=tmp_path)
    assert list(table.columns) == RESULT_COLUMNS
    # One step of FGSM moves a pixel by eps, of which 26/255 = 0.102 and 64/255 = 0.251.
    # Twenty steps of 2/255 get no further than 40/255 = 0.157.
    assert accuracies(table) == {
        "clean": 80,
        "fgsm 8": 80,
        "fgsm 26": 60,
        "fgsm 64": 30,
        "ifgsm 8": 80,
        "ifgsm 26": 60,
        "ifgsm 64": 40,
    }
    line = table.set_index(["perturbation", "eps_255"]).loc[("ifgsm", 64.0)]
    assert line["max_delta_255"] == pytest.approx(40, abs=1e-3)
    assert (line["alpha_255"], line["steps"], line["zero_grad"]) == (2, 20, 0)
    assert (line["n"], line["dataset"], line["protocol"], line["members"]) == (10, "custom", "final", 1)
    line = table.set_index(["perturbation", "eps_255"]).loc[("fgsm", 26.0)]
    assert line["max_delta_255"] == pytest.approx(26, abs=1e-3)
    assert (line["ci_low"], line["ci_high"]) == pytest.approx((31.2674, 83.1820), abs=1e-3)

    board = pd.read_csv(tmp_path / "leaderboard.csv").iloc[0]
    assert (board["model"], board["clean"], board["fgsm_64"], board["ifgsm_64"]) == ("net", 80, 30, 40)
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "results.csv")[["perturbation", "accuracy"]],
        table[["perturbation", "accuracy"]],
        check_dtype=False,
    )


def test_predictions_are_stored_in_the_order_of_the_samples(tmp_path):
    evaluate(out=tmp_path)
    with Store(tmp_path) as store:
        (plan,) = store.plans()
        by_column = {cell.perturbation.column: store.read(cell.key, 10).predictions for cell in plan.cells}
    assert by_column["clean"].tolist() == [1, 0, 1, 0, 1, 0, 1, 0, 0, 1]
    assert by_column["fgsm_26"].tolist() == [0, 1, 1, 0, 1, 0, 1, 0, 0, 1]
    assert by_column["ifgsm_64"].tolist() == [0, 1, 0, 1, 1, 0, 1, 0, 0, 1]


@pytest.mark.slow
def test_the_first_n_samples_are_measured():
    table = evaluate(n=4)
    assert set(table["n"]) == {4}
    found = accuracies(table)
    assert (found["clean"], found["fgsm 8"], found["fgsm 26"], found["fgsm 64"]) == (100, 100, 50, 0)
    assert accuracies(evaluate(n=9))["clean"] == pytest.approx(800 / 9)


@pytest.mark.slow
def test_every_row_of_a_run_is_over_the_same_samples():
    whole, few = evaluate(), evaluate(n=4)
    assert whole["subset_hash"].nunique() == few["subset_hash"].nunique() == 1
    assert whole["subset_hash"][0] != few["subset_hash"][0]


def test_protocol_worst_asks_for_all_attacks_at_a_radius():
    found = accuracies(evaluate(protocol="worst"))
    assert (found["worst 8"], found["worst 26"], found["worst 64"]) == (80, 60, 30)
    assert found["fgsm 64"] == 30
    assert "ifgsm 64" not in found  # it left out what FGSM had broken


@pytest.mark.slow
def test_masked_gradients_are_warned_of():
    many = np.tile(IMAGES, (40, 1, 1, 1)), np.tile(LABELS, 40)  # of ten images, ten points say nothing
    with pytest.warns(UserWarning, match=r"under ifgsm_64 is 40\.0 %, under one FGSM step 30\.0 %"):
        robust_interp.evaluate({"net": Threshold()}, many, corruptions="none", eps=(64 / 255,))
    with pytest.warns(UserWarning, match=r"ifgsm_64: 20 steps of 2/255 cannot reach eps"):
        evaluate()


@pytest.mark.slow
def test_a_model_that_lacks_a_seed_that_others_have_is_remarked_on(tiny_zoo):
    options = {"n": 4, "attacks": "none", "corruptions": "none", "zoo": str(tiny_zoo), "seeds": 2}
    with pytest.warns(UserWarning, match=r"preact_resnet14 \w+ has no train seed 1: its row averages fewer"):
        robust_interp.evaluate(["in_resnet14", "preact_resnet14"], **options)


@pytest.mark.slow
def test_a_model_without_any_of_the_seeds_is_not_left_out_in_silence(own_zoo):
    shutil.copytree(own_zoo / "in_resnet14.digits_none_seed0", own_zoo / "in_resnet14.digits_other_seed0")
    options = {"n": 4, "attacks": "none", "corruptions": "none", "zoo": str(own_zoo), "seeds": (1,)}
    for named in ("preact_resnet14", "preact_resnet14.digits_none_seed0", "in_resnet14@other"):
        with pytest.raises(UserError, match=f"{named} has no checkpoint with train seed 1"):
            robust_interp.evaluate(["in_resnet14", named], **options)
    with pytest.warns(UserWarning, match="preact_resnet14 none has no train seed 1: it is left out"):
        found = robust_interp.evaluate(["*_resnet14"], **options)
    assert set(found["model"]) == {"in_resnet14"}


@pytest.mark.slow
def test_a_row_of_checkpoints_from_two_folders_is_remarked_on(tiny_zoo, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    for folder, seed in ((tmp_path / "mine", 0), (tmp_path / "model_zoo", 1)):
        name = f"in_resnet14.digits_none_seed{seed}"
        shutil.copytree(tiny_zoo / name, folder / name)
    monkeypatch.chdir(tmp_path)
    options = {"n": 4, "attacks": "none", "corruptions": "none", "zoo": "mine", "ensembles": False}
    told = r"of in_resnet14 none are from mine \(seeds 0\) and model_zoo \(seeds 1\): --only-zoo uses"
    with pytest.warns(UserWarning, match=told):
        found = robust_interp.evaluate(["in_resnet14"], **options)
    assert len(found) == 2
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        assert len(robust_interp.evaluate(["in_resnet14"], **options, only_zoo=True)) == 1
    assert not [one for one in others if "--only-zoo" in str(one.message)]


@pytest.mark.slow
def test_two_sets_of_weights_are_not_averaged_as_two_train_seeds(tiny_zoo, tmp_path):
    again = tmp_path / "in_resnet14.digits_none_seed0"
    shutil.copytree(tiny_zoo / "in_resnet14.digits_none_seed1", again)
    options = {"n": 4, "attacks": "none", "corruptions": "none", "zoo": str(tiny_zoo), "ensembles": False}
    with pytest.raises(UserError, match="in_resnet14 none seed 0 is named with two sets of weights"):
        robust_interp.evaluate(["in_resnet14", str(again)], **options)
    shutil.copytree(tiny_zoo / again.name, again, dirs_exist_ok=True)  # the same weights count once
    found = robust_interp.evaluate(["in_resnet14", str(again)], **options)
    assert found["train_seed"].tolist() == [0, 1]


@pytest.mark.slow
def test_the_work_of_a_run_is_counted_in_forward_passes():
    request = Request(
        modules={"net": Threshold()},
        dataset=data.from_arrays(IMAGES, np.array(LABELS)),
        attacks="fgsm,ifgsm",
        corruptions="none",
        eps=(8 / 255,),
    )
    benchmark, seen = Benchmark(request), Counting()
    with Store(None) as store:
        # a sample: 1 when clean, 3 + 1 for FGSM, 3 x 20 + 1 for IFGSM
        assert sum(cost(cell) * samples for cell, samples in benchmark.work(store)) == 10 * (1 + 4 + 61)
        assert benchmark.estimate(store).seconds > 0
        benchmark.run(store, seen)
        assert (benchmark.work(store), benchmark.estimate(store)) == ([], (0, False))
    assert sum(cost(cell) * samples for cell, samples in seen.finished) == 660
    # FGSM is one batch of 10 samples, 3 of its 4 passes in the attack; IFGSM 20 times 3 of its 61.
    assert sum(samples for _, samples in seen.steps) == pytest.approx(10 * (3 / 4 + 60 / 61))


def planned(**options):
    usual = {"attacks": "fgsm,ifgsm", "corruptions": "none", "eps": (64 / 255,)} | options
    dataset = data.from_arrays(IMAGES, np.array(LABELS))
    return Benchmark(Request(modules={"net": Threshold()}, dataset=dataset, **usual))


@pytest.fixture
def in_passes(monkeypatch):
    """A pass takes a second."""
    monkeypatch.setattr(timing, "seconds_per_pass", lambda *_: 1.0)


@pytest.mark.slow
def test_an_estimate_is_a_bound_until_it_is_known_what_is_left_out(in_passes):
    """Clean 10 x 1; FGSM, 4 passes, on the 8 that are right; IFGSM, 61, on the 3 that FGSM leaves."""
    steps = [
        ({"attacks": "none"}, 10, False),
        ({"attacks": "none"}, 0, False),
        ({"attacks": "fgsm"}, 8 * 4, False),
        ({}, 3 * 61, False),
        ({}, 0, False),
    ]
    with Store(None) as store:
        assert planned(protocol="worst").estimate(store) == (10 * (1 + 4 + 61), True)
        assert planned(protocol="final").estimate(store) == (10 * (1 + 4 + 61), False)
        for options, passes, is_bound in steps:
            if passes == 32:
                assert planned(protocol="worst").estimate(store) == (8 * (4 + 61), True)
            benchmark = planned(protocol="worst", **options)
            assert benchmark.estimate(store) == (passes, is_bound)
            seen = Counting()
            benchmark.run(store, seen)
            assert sum(cost(cell) * images for cell, images in seen.finished) == passes


@pytest.mark.slow
def test_images_that_need_no_attack_are_told_before_the_attack_begins():
    """Of 10 images, 2 are wrong when clean, and FGSM breaks 5 more. At first both are stored."""

    class InOrder(Watch):
        def skipped(self, cell, images):
            told.append((cell.perturbation.name, -images))

        def __call__(self, cell, images):
            told.append((cell.perturbation.name, images))

    for before, expected in (
        ("fgsm", [("ifgsm", -7), ("ifgsm", 3)]),
        ("", [("clean", 10), ("fgsm", -2), ("fgsm", 8), ("ifgsm", -7), ("ifgsm", 3)]),
    ):
        told = []
        with Store(None) as store:
            if before:
                planned(protocol="worst", attacks=before).run(store)
            planned(protocol="worst").run(store, InOrder())
        assert told == expected


def test_evaluate_reports_the_share_of_the_work_that_is_done():
    """10 images with 1, 4 and 61 passes: 660 at first, 652 once two are known to be wrong, then 225."""
    told = []
    evaluate(eps=64 / 255, protocol="worst", progress=lambda share, what: told.append((what, share)))
    assert [what for what, _ in told] == ["net clean", "net fgsm_64", "net ifgsm_64"]
    assert [share for _, share in told] == pytest.approx([10 / 660, 42 / 652, 1.0])
    with pytest.raises(UserError, match="progress must be a function of a share and a name, such as print"):
        evaluate(progress=True)


@pytest.mark.parametrize(
    ("options", "is_bound"),
    [
        ({"attacks": "pgd"}, False),
        ({"attacks": "pgd(restarts=2)"}, True),
        ({"attacks": "apgd_ce"}, True),  # leaves what is wrong when clean as it is
        ({"attacks": "square(queries=5)"}, True),
        ({"attacks": "none", "strong": "apgd_ce"}, True),
        ({"attacks": "none", "corruptions": "none"}, False),
    ],
)
def test_what_may_stop_early_makes_an_estimate_a_bound(in_passes, options, is_bound):
    with Store(None) as store:
        assert planned(**options).estimate(store).is_bound == is_bound


@pytest.mark.parametrize(
    ("spec", "together", "alone"),  # passes of an image: gradients count as three, and a prediction as one
    [
        ("deepfool", 0, 60 + 1),
        ("apgd_t", 3 * 100 * 9 + 1, 0),
        ("apgd_t(norm=L2, eps=0.5)", 0, 3 * 100 * 9 + 1),
        ("square(norm=L2, eps=0.5)", 0, 1000 + 1),
        ("autoattack(norm=L2, eps=0.5)", 3 * 100 * 19 + 1, 5000),
    ],
)
def test_what_is_attacked_one_by_one_is_timed_so(monkeypatch, spec, together, alone):
    """A pass on one image takes longer than its share of a pass on many."""
    monkeypatch.setattr(timing, "seconds_per_pass", lambda classifier, images: 1 / len(images))
    labels = np.arange(10) % 5
    dataset = data.from_arrays(np.full((10, 3, 6, 6), 0.5, np.float32), labels)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 5))
    with Store(None) as store:
        asked = Request(modules={"net": net}, dataset=dataset, attacks=spec, corruptions="none", eps=(0.1,))
        found = Benchmark(asked).estimate(store).seconds
    clean = 1
    assert found == pytest.approx(clean + together + 10 * alone, rel=1e-3)


def test_a_cell_that_both_parts_of_a_run_have_is_counted_once(in_passes):
    """Under worst PGD skips the same samples in both: clean once, PGD once, and one stronger attack."""
    usual = {"attacks": "pgd", "strong": "ifgsm(steps=40)", "protocol": "worst"}
    with Store(None) as store:
        benchmark, done = planned(**usual), Counting()
        work = sum(cost(cell) * samples for cell, samples in benchmark.work(store))
        assert work == benchmark.estimate(store).seconds == 10 * (1 + 61 + 121)
        benchmark.run(store, done)
    assert sum(cost(cell) * samples for cell, samples in done.finished + done.skips) == work
    of_pgd = [samples for cell, samples in done.finished if cell.perturbation.name == "pgd"]
    assert of_pgd == [8]  # the images that are right when clean


@pytest.mark.slow
def test_what_is_stored_is_not_measured_again_under_another_name(tmp_path):
    first = evaluate(out=tmp_path)
    before = chunks(tmp_path)
    again = robust_interp.evaluate(
        {"other name": Threshold()},
        (IMAGES, np.array(LABELS)),
        attacks="fgsm,ifgsm",
        corruptions="none",
        eps=(8 / 255, 26 / 255, 64 / 255),
        out=tmp_path,
    )
    assert chunks(tmp_path) == before
    assert accuracies(again) == accuracies(first)
    assert set(again["model"]) == {"other name"}


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"eps": (8,)}, ["eps", "8/255", "not 8"]),
        ({"eps": (-1 / 255,)}, ["eps must be above 0"]),
        ({"eps": (0,)}, ["eps must be above 0"]),
        ({"eps": (float("nan"),)}, ["eps must be above 0", "nan"]),
        ({"eps": (float("inf"),)}, ["eps must be above 0", "inf"]),
        ({"eps": ()}, ["give at least one radius"]),
        ({"eps": 8}, ["eps", "did you mean 8/255?"]),
        ({"eps": "0.03"}, ["looks like [0, 1] pixels", "did you mean 7.65?"]),
        ({"n": 11}, ["n must be 1 to 10", "not 11"]),
        ({"n": -1}, ["n must be 1 to 10", "not -1"]),
        ({"n": 0}, ["n must be 1 to 10", "not 0"]),
        ({"protocol": "wurst"}, ["protocol must be one of final, worst, not 'wurst'"]),
        ({"batch_size": 0}, ["batch size must be a whole number of at least 1, not 0"]),
        ({"device": "cuba"}, ["cannot use device 'cuba'"]),
        ({"attacks": "fgmm"}, ["unknown attack 'fgmm'", "fgsm"]),
        ({"attacks": ""}, ["no attack given"]),
        ({"corruptions": "gausian_noise"}, ["unknown corruption 'gausian_noise'", "gaussian_noise"]),
        ({"decode_workers": "x"}, ["decode_workers must be a whole number"]),
        ({"mean": (0.5,)}, ["both mean and std"]),
        ({"seed": -1, "corruptions": "shot_noise(severity=1)"}, ["seed", "-1"]),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_writes_nothing(tmp_path, options, parts):
    with pytest.raises(UserError) as refusal:
        evaluate(out=tmp_path / "results", **options)
    message = str(refusal.value)
    assert "\n" not in message
    assert all(part in message for part in parts)
    assert not (tmp_path / "results").exists()


def test_radii_are_measured_once_each_and_in_order():
    table = evaluate(eps=[64 / 255, 26 / 255, 64 / 255])
    assert list(accuracies(table)) == ["clean", "fgsm 26", "fgsm 64", "ifgsm 26", "ifgsm 64"]
    assert len(table) == 5


@pytest.mark.parametrize("none", [[], (), {}], ids=repr)
def test_no_models_are_not_taken_for_all(tmp_path, none):
    with pytest.raises(UserError, match="no model given"):
        robust_interp.evaluate(none, n=5, attacks="none", corruptions="none", out=tmp_path / "results")
    assert not (tmp_path / "results").exists()


# Checkpoints.

QUICK = {"attacks": "fgsm", "eps": (16 / 255,), "corruptions": "none", "n": 20, "device": "cpu"}


def logits_by_hand(folder, images):
    """Of a digits checkpoint, past the package's own loading and normalisation."""
    model = zoo.create(folder.name.partition(".")[0], num_classes=10, in_chans=1).eval()
    model.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
    with torch.no_grad():
        return model((torch.from_numpy(images) - 0.3054) / 0.3763)


@pytest.mark.slow
def test_seeds_are_rows_and_their_ensemble_averages_probabilities(tiny_zoo, tmp_path):
    table = robust_interp.evaluate("in_resnet14", zoo=tiny_zoo, out=tmp_path, **QUICK)
    clean = table[table["perturbation"] == "clean"]
    assert clean["train_seed"].tolist() == [0, 1, pd.NA]
    assert clean["members"].tolist() == [1, 1, 2]
    test = data.load("digits", "test")
    images, labels = test.images[:20], test.labels[:20]
    each = [
        logits_by_hand(tiny_zoo / f"in_resnet14.digits_none_seed{seed}", images).double().softmax(1)
        for seed in (0, 1)
    ]
    expected = [probabilities.argmax(1).numpy() for probabilities in (*each, (each[0] + each[1]) / 2)]
    assert clean["accuracy"].tolist() == pytest.approx([100 * (p == labels).mean() for p in expected])
    with Store(tmp_path) as store:
        (plan,) = store.plans()
        found = [store.read(c.key, 20).predictions for c in plan.cells if c.perturbation.kind == "clean"]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tolist() == theirs.tolist()
    assert not np.array_equal(expected[0], expected[1])


@pytest.mark.slow
def test_seeds_can_be_chosen_and_ensembles_left_out(tiny_zoo):
    def measured(**options):
        table = robust_interp.evaluate(["in_resnet14", "preact*14"], zoo=tiny_zoo, **QUICK | options)
        clean = table[table["perturbation"] == "clean"]
        return [
            (line.model, None if pd.isna(line.train_seed) else line.train_seed, line.members)
            for line in clean.itertuples()
        ]

    one, two, both, other = (
        ("in_resnet14", 0, 1),
        ("in_resnet14", 1, 1),
        ("in_resnet14", None, 2),
        ("preact_resnet14", 0, 1),
    )
    assert measured() == [one, two, both, other]
    assert measured(ensembles=False) == [one, two, other]
    assert measured(seeds=(0,)) == [one, other]
    assert measured(seeds=(1,)) == [two]
    with pytest.raises(UserError, match="seed 7"):
        measured(seeds=(0, 7))


@pytest.mark.parametrize("seeds", [(), 0, -1, (-1,)])
def test_no_seeds_are_not_taken_for_an_empty_table(tiny_zoo, tmp_path, seeds):
    with pytest.raises(UserError, match="seed"):
        robust_interp.evaluate("in_resnet14", zoo=tiny_zoo, seeds=seeds, out=tmp_path / "results", **QUICK)
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_the_bundled_checkpoints_reach_the_accuracy_they_record():
    chosen = [c for c in zoo.checkpoints(dataset="digits") if c.recipe == "digits" and c.seed == 0]
    assert {c.architecture for c in chosen} >= {"preact_resnet20", "in_resnet20", "lambda_in_resnet20"}
    test = data.load("digits", "test")
    names = [c.name for c in chosen]
    table = robust_interp.evaluate(names, attacks="none", corruptions="none", n="all", device="cpu")
    for checkpoint, line in zip(chosen, table.itertuples(), strict=True):
        predictions = logits_by_hand(checkpoint.folder, test.images).argmax(1).numpy()
        assert line.accuracy == pytest.approx(100 * (predictions == test.labels).mean())
        assert line.accuracy == pytest.approx(checkpoint.record["clean_accuracy"], abs=1e-3)
        assert line.weights_sha256 == checkpoint.record["weights_sha256"]
        assert (line.model, line.n, line.recipe) == (checkpoint.architecture, 450, "digits")


@pytest.mark.slow
def test_predictions_do_not_depend_on_how_the_samples_are_batched(tmp_path):
    found = {}
    for size in (100, 450):
        robust_interp.evaluate(
            "in_resnet20.digits_digits_seed0",
            attacks="fgsm,pgd(steps=3)",
            eps=(16 / 255,),
            corruptions="gaussian_noise(severity=3)",
            n=450,
            batch_size=size,
            device="cpu",
            out=tmp_path / str(size),
        )
        with Store(tmp_path / str(size)) as store:
            (plan,) = store.plans()
            assert len(plan.cells) == 4
            found[size] = np.concatenate([store.read(cell.key, 450).predictions for cell in plan.cells])
    assert (found[100] == found[450]).mean() >= 0.999


@pytest.mark.slow
def test_the_same_run_twice_gives_the_same_tables(tiny_zoo, tmp_path):
    options = QUICK | {"attacks": "pgd(steps=2)", "corruptions": "shot_noise(severity=1)"}
    for name in ("one", "two"):
        robust_interp.evaluate("in_resnet14", zoo=tiny_zoo, out=tmp_path / name, **options)
    one, two = (tmp_path / name / "leaderboard.csv" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    one, two = (
        pd.read_csv(tmp_path / name / "results.csv").drop(columns="seconds") for name in ("one", "two")
    )
    pd.testing.assert_frame_equal(one, two)


def test_a_network_of_another_number_of_classes_is_refused(tmp_path):
    model = zoo.create("preact_resnet14", num_classes=1000, in_chans=1)
    with pytest.raises(UserError, match="1000"):
        robust_interp.evaluate(
            {"net": model}, n=5, out=tmp_path / "results", attacks="none", corruptions="none"
        )
    assert not list((tmp_path / "results").glob("*.csv"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "real_cifar", ["cifar10", pytest.param("cifar100", marks=pytest.mark.exhaustive)], indirect=True
)
def test_the_real_cifar_end_to_end(real_cifar, tmp_path, capsys):
    name, root = real_cifar
    kind = data.DATASETS[name]
    torch.manual_seed(0)
    model = zoo.create("preact_resnet14", num_classes=kind.classes)
    cfg = {
        "num_classes": kind.classes,
        "input_size": [3, 32, 32],
        "mean": list(kind.mean),
        "std": list(kind.std),
    }
    record = {"lambda_init": None, "parameters": 1, "clean_accuracy": 10.0, "clean_n": 10_000}
    folder = tmp_path / "zoo" / f"preact_resnet14.{name}_none_seed0"
    zoo.save(model, folder, cfg, {}, record, half=False)
    command = (
        f"bench --dataset {name} --models preact_resnet14 --n 16 --eps 1,2,4 --attacks fgsm --device cpu"
    )
    places = ["--data-dir", root, "--zoo", str(tmp_path / "zoo"), "--out", str(tmp_path / "results")]
    assert main([*command.split(), "--corruptions", "impulse_noise(severity=5)", *places]) == 0
    assert f"{name}, n = 16, protocol final" in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "results" / "results.csv")
    assert table["perturbation"].tolist() == ["clean", "impulse_noise", "fgsm", "fgsm", "fgsm"]
    assert table["eps_255"].tolist()[2:] == [1, 2, 4]
    assert table["max_delta_255"].tolist()[2:] == pytest.approx([1, 2, 4], abs=1e-3)

    import torchvision

    official = getattr(torchvision.datasets, name.upper())(root, train=False)
    images = torch.from_numpy(official.data[:16].copy()).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (kind.mean, kind.std))
    with torch.no_grad():
        right = model.eval()((images - mean) / std).argmax(1) == torch.tensor(official.targets[:16])
    assert table["accuracy"][0] == pytest.approx(100 * right.float().mean().item())
    assert main(["leaderboard", "paper", str(tmp_path / "results")]) == 0
    assert capsys.readouterr().out.startswith(f"{name},")
