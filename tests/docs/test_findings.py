"""The numbers of the findings are those of the published stores, which hold every prediction behind them."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_ind
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint
from support.markdown import README, ROOT, cells

from robust_interp.core.percent import percent
from robust_interp.core.statistics import paired_difference
from robust_interp.corruptions.names import MEANS
from robust_interp.results import combine, compare
from robust_interp.results.folders import runs_in

STORES = ROOT / "leaderboards" / "stores"
DOCS = ROOT / "docs"
FINDINGS, MECHANISM, NETWORKS = DOCS / "findings.md", DOCS / "mechanism.md", DOCS / "networks.md"
RADII = ("1", "2", "4")

# model and recipe of each row of the first table, named by its first three columns
FIRST = {
    ("In-ResNet-110", "22", "bf16"): ("in_resnet110", "quick_bf16"),
    ("In-ResNet-110", "22", "float32"): ("in_resnet110", "quick"),
    ("λ-In-ResNet-110", "22", "bf16"): ("lambda_in_resnet110", "quick_bf16"),
    ("In-ResNet-110, warm-up", "22", "bf16"): ("in_resnet110", "quick_warmup_epochs_1_bf16"),
    ("ResNet-110", "22", "bf16"): ("preact_resnet110", "quick_bf16"),
    ("In-ResNet-110, warm-up, λ fixed at 0.20 to 0.25", "10", "bf16"): (
        "in_resnet110_fixed",
        "quick_10epochs_warmup_epochs_1_bf16",
    ),
    ("ResNet-20", "4", "bf16"): ("preact_resnet20", "quick_4epochs_bf16"),
    ("In-ResNet-20, λ fixed at 0.20 to 0.25", "12", "bf16"): ("in_resnet20_fixed", "quick_12epochs_bf16"),
    ("In-ResNet-20", "12", "bf16"): ("in_resnet20", "quick_12epochs_bf16"),
    ("ResNet-20", "12", "bf16"): ("preact_resnet20", "quick_12epochs_bf16"),
    ("ResNet-20, burst of 100", "12", "bf16"): ("preact_resnet20_burst100", "quick_12epochs_bf16"),
    ("ResNet-20, burst of 1000", "12", "bf16"): ("preact_resnet20_burst1000", "quick_12epochs_bf16"),
}


@cache
def board():
    """One row per model and recipe: that of most train seeds, on 1,000 images."""
    rows, *_ = combine.gather([STORES / name for name in ("depth110", "depth20", "study", "controls")])
    rows = rows[(rows["n_examples"] == 1000) & (rows["members"] == 1)]
    newest = rows.sort_values("seeds").drop_duplicates(["model", "recipe"], keep="last")
    return newest.set_index(["model", "recipe"])


def rows_of(page: Path) -> list[list[str]]:
    lines = page.read_text(encoding="utf-8").splitlines()
    return [cells(line) for line in lines if line.startswith("|")]


def text_of(page: Path) -> str:
    """Without the line breaks of its paragraphs."""
    return " ".join(page.read_text(encoding="utf-8").split())


def wilson(accuracy: float, n: int) -> str:
    low, high = proportion_confint(round(accuracy * n / 100), n, method="wilson")
    return f"{accuracy:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def over_seeds(row, column: str) -> str:
    return f"{percent(row[column])} ± {percent(row[column + '_std'])}"


def signed(value: float) -> str:
    return percent(value, signed=True).replace("-", "−")


@cache
def compared(a: str, b: str):
    folders = [STORES / name for name in ("depth110", "depth20", "controls")]
    return compare.from_folders(folders, a, b, n=1000, protocol="final").frame.set_index("column")


@pytest.mark.parametrize("named", FIRST, ids=" ".join)
def test_the_first_table(named):
    row = board().loc[FIRST[named]]
    (told,) = [row for row in rows_of(FINDINGS) if tuple(row[:3]) == named]
    assert told[3] == str(row["seeds"])
    if row["seeds"] == 1:
        assert told[4:7] == [percent(row["clean"]), percent(row["noise"]), wilson(row["pgd_2"], 1000)]
    else:
        assert told[4:7] == [over_seeds(row, column) for column in ("clean", "noise", "pgd_2")]


@cache
def right_under_pgd_and_apgd() -> dict[tuple[str, str, int, str], np.ndarray]:
    """By model, recipe, train seed and column: which of the images of `depth110_strong` are right."""
    runs, _ = runs_in([STORES / "depth110_strong"])
    return {
        (by.model, by.recipe, by.train_seed, score.column): score.right
        for run in runs
        for score in run
        for by in [score.classifier]
    }


def on_500_images(model: str, recipe: str, column: str) -> str:
    right = right_under_pgd_and_apgd()
    seeds = range(3 if (model, recipe, 2, column) in right else 1)
    accuracies = [100 * right[model, recipe, seed, column][:500].mean() for seed in seeds]
    mean = percent(np.mean(accuracies))
    return mean if len(accuracies) == 1 else f"{mean} ± {percent(np.std(accuracies, ddof=1))}"


AT_DEPTH_110 = list(FIRST)[:5]


@pytest.mark.parametrize("named", AT_DEPTH_110, ids=" ".join)
def test_what_pgd_and_apgd_ce_leave_of_500_images(named):
    (told,) = [row for row in rows_of(FINDINGS) if tuple(row[:3]) == named]
    assert told[7:] == [on_500_images(*FIRST[named], column) for column in ("pgd_2", "strong_2")]


@pytest.mark.parametrize("named", AT_DEPTH_110, ids=" ".join)
def test_the_table_of_the_readme(named):
    (findings,) = [row for row in rows_of(FINDINGS) if tuple(row[:3]) == named]
    name = findings[0] + (", float32" if findings[2] == "float32" else "")
    seeds = ", three seeds" if findings[3] == "3" else ""
    (told,) = [row for row in rows_of(README) if row[0].replace(" (`preact_resnet110`)", "") == name + seeds]
    assert told[1:] == [
        text.replace(" ± ", "±").replace(" to ", "–") for text in [*findings[4:7], findings[8]]
    ]


@pytest.mark.parametrize("factor", [100, 1000])
def test_the_leads_of_the_bursts(factor):
    frame = compared(f"preact_resnet20_burst{factor}", "preact_resnet20@quick_12epochs_bf16")
    (told,) = [row for row in rows_of(MECHANISM) if row[0] == f"burst of {factor}"]
    for text, column in zip(told[1:], ("clean", "noise", "pgd_1", "pgd_2"), strict=True):
        lead = frame.loc[column]
        p = f"{lead['p_holm']:.1g}".replace("e-0", "e-")
        assert lead["verdict"] == "significant"
        difference, low, high = (signed(lead[name]) for name in ("difference", "ci_low", "ci_high"))
        assert text == f"{difference} ({low} to {high}; {p})"


@pytest.mark.parametrize(
    ("named", "entry"),
    [
        ("lead of In-ResNet, three seeds", "in_resnet110@quick_bf16"),
        ("lead of In-ResNet, float32", "in_resnet110@quick"),
        ("lead of In-ResNet, warm-up", "in_resnet110@quick_warmup_epochs_1_bf16"),
        ("lead of λ-In-ResNet", "lambda_in_resnet110"),
    ],
)
def test_the_leads_at_depth_110(named, entry):
    lead = compared(entry, "preact_resnet110")["difference"]  # of the common train seeds
    (told,) = [row for row in rows_of(NETWORKS) if row[0] == named]
    assert told[1:3] == [signed(lead["clean"]), signed(lead["noise"])]
    for text, attack in zip(told[3:], ("fgsm", "ifgsm", "pgd"), strict=True):
        assert text == " / ".join(signed(lead[f"{attack}_{eps}"]) for eps in RADII)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_lead_of_each_seed(seed):
    runs, _ = runs_in([STORES / "depth110"])
    scored = {
        (score.classifier.model, score.column): 100 * score.right.mean()
        for run in runs
        for score in run
        if (score.row["n"], score.classifier.recipe, score.classifier.train_seed)
        == (1000, "quick_bf16", seed)
    }
    lead = {
        column: value - scored["preact_resnet110", column]
        for (model, column), value in scored.items()
        if model == "in_resnet110"
    }
    noise = sum(lead[f"{name}_{s}"] for name in MEANS["noise"] for s in range(1, 6)) / 20
    (told,) = [row for row in rows_of(NETWORKS) if row[0] == f"lead of In-ResNet, seed {seed}"]
    assert told[1:3] == [signed(lead["clean"]), signed(noise)]
    for text, attack in zip(told[3:], ("fgsm", "ifgsm", "pgd"), strict=True):
        assert text == " / ".join(signed(lead[f"{attack}_{eps}"]) for eps in RADII)


@pytest.mark.parametrize(
    ("named", "column"),
    [
        *(("clean", "clean"), ("noise", "noise"), ("Gaussian noise", "gaussian_noise")),
        *(("shot noise", "shot_noise"), ("FGSM 1/255", "fgsm_1"), ("PGD 1/255", "pgd_1")),
        ("PGD 2/255", "pgd_2"),
    ],
)
def test_the_difference_over_seeds(named, column):
    lead = compared("in_resnet110@quick_bf16", "preact_resnet110").loc[column]
    means = [
        over_seeds(board().loc[model, "quick_bf16"], column) for model in ("in_resnet110", "preact_resnet110")
    ]
    difference, low, high = (signed(lead[name]) for name in ("difference", "ci_low", "ci_high"))
    (told,) = [row for row in rows_of(NETWORKS) if row[0] == named and "±" in row[1]]
    holm = lead["p_holm"]
    p = f"{lead['p_seeds']:.1g}; {holm:.{2 if holm > 0.01 else 1}g}"
    assert told[1:] == [*means, f"{difference} ({low} to {high})", p]
    assert lead["verdict"] == "significant"


TUNED = {  # rows of the table on 500 images: train seed, model and recipe
    "In-ResNet, seed 0": (0, "in_resnet110", "quick_bf16"),
    "In-ResNet, seed 1": (1, "in_resnet110", "quick_bf16"),
    "In-ResNet, seed 2": (2, "in_resnet110", "quick_bf16"),
    "In-ResNet, float32": (0, "in_resnet110", "quick"),
    "λ-In-ResNet": (0, "lambda_in_resnet110", "quick_bf16"),
    "In-ResNet, warm-up": (0, "in_resnet110", "quick_warmup_epochs_1_bf16"),
    "ResNet, seed 0": (0, "preact_resnet110", "quick_bf16"),
    "ResNet, seed 1": (1, "preact_resnet110", "quick_bf16"),
    "ResNet, seed 2": (2, "preact_resnet110", "quick_bf16"),
}


def test_what_a_tuned_attack_leaves_of_500_images():
    right = right_under_pgd_and_apgd()
    rows = rows_of(NETWORKS)
    begin = next(at for at, row in enumerate(rows) if row[0] == "n = 500")
    table = {row[0]: row[1:] for row in rows[begin + 2 : begin + 2 + len(TUNED)]}
    for name, (seed, *network) in TUNED.items():
        left = [right[*network, seed, f"strong_{eps}"] for eps in (1, 2)]
        assert [len(images) for images in left] == [500, 500]
        one, two = (100 * images.mean() for images in left)
        assert table[name] == [percent(one), wilson(two, 500)]


def gains_of_apgd_ce(model: str, eps: int) -> list:
    """Over PGD, on 500 images, of train seeds 0 to 2."""
    right = right_under_pgd_and_apgd()
    names = [(model, "quick_bf16", seed) for seed in (0, 1, 2)]
    return [paired_difference(right[*n, f"pgd_{eps}"][:500], right[*n, f"strong_{eps}"]) for n in names]


def test_what_apgd_ce_gains_over_pgd_on_500_images():
    gains = gains_of_apgd_ce("in_resnet110", 2)
    page = text_of(FINDINGS)
    points = [percent(gain.points) for gain in gains]
    assert "lose {}, {} and {} further points on 500 images".format(*points) in page
    assert f"(95 % interval {percent(gains[1].low)} to {percent(gains[1].high)})" in page
    assert gains[1].low > 2 > max(gains[0].low, gains[2].low)
    resnet, in_resnet = (
        "{}, {} and {}".format(*(percent(gain.points) for gain in gains_of_apgd_ce(model, 1)))
        for model in ("preact_resnet110", "in_resnet110")
    )
    shown = f"takes {resnet} points from what PGD leaves of the three ResNets, and {in_resnet} from the"
    assert shown in text_of(NETWORKS)


def test_holms_correction_over_all_seventeen_columns():
    p_seeds = compared("in_resnet110@quick_bf16", "preact_resnet110")["p_seeds"].to_dict()
    right = right_under_pgd_and_apgd()
    for column in ("strong_1", "strong_2"):
        ours, theirs = (
            [100 * right[model, "quick_bf16", seed, column].mean() for seed in (0, 1, 2)]
            for model in ("in_resnet110", "preact_resnet110")
        )
        p_seeds[column] = ttest_ind(ours, theirs, equal_var=False).pvalue
    assert len(p_seeds) == 17
    corrected = dict(zip(p_seeds, multipletests(list(p_seeds.values()), method="holm")[1], strict=True))
    told = [f"{corrected[column]:.2g}" for column in ("pgd_2", "strong_2")]
    page = text_of(FINDINGS)
    assert f"Holm's p over these seventeen columns {told[0]})" in page
    assert f"+17.6 to +34.4; {told[1]})" in page
    assert f"+15.0 to +19.7; {corrected['noise']:.1g})" in page
    strong = f"{corrected['strong_1']:.1g} and {told[1]}"
    assert f"among all seventeen columns ({strong})" in text_of(NETWORKS)


def test_the_first_look_at_two_pairs_of_seeds():
    runs, _ = runs_in([STORES / "depth110"])
    on_1000 = {
        (score.classifier.model, score.classifier.train_seed): 100 * score.right.mean()
        for run in runs
        for score in run
        if (score.column, score.row["n"], score.classifier.recipe) == ("pgd_2", 1000, "quick_bf16")
    }
    ours, theirs = (
        [on_1000[model, seed] for seed in (0, 1)] for model in ("in_resnet110", "preact_resnet110")
    )
    low, high = ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    shown = ", ".join([signed(sum(ours) / 2 - sum(theirs) / 2), f"{signed(low)} to {signed(high)}"])
    assert f"(PGD at 2/255: {shown})" in text_of(NETWORKS)


def test_what_targeted_apgd_and_autoattack_leave():
    runs, _ = runs_in([STORES / "depth110"])
    left = {
        (score.classifier.train_seed, score.classifier.model, score.classifier.recipe, score.row["n"]): score
        for run in runs
        for score in run
        if score.column == "strong_2"
    }
    rows = rows_of(NETWORKS)
    begin = next(at for at, row in enumerate(rows) if row[0] == "images left")
    table = {row[0]: row[1:] for row in rows[begin + 2 : begin + 2 + len(TUNED)]}
    for name, network in TUNED.items():
        shown = []
        for n in (100, 50):
            shown.append(str(left[*network, 200].right[:n].sum()))
            stronger = left.get((*network, n))
            shown.append(wilson(100 * stronger.right.mean(), n) if stronger else "")
        assert table[name] == shown


@pytest.mark.parametrize(("named", "model"), [("In-ResNet", "in_resnet110"), ("ResNet", "preact_resnet110")])
def test_the_ensembles_of_two_seeds(named, model):
    rows, *_ = combine.gather([STORES / "depth110"])
    rows = rows[rows["n_examples"] == 200].set_index(["model", "members"])
    for name, members in ((f"{named}, ensemble", 2), (f"{named}, mean of the two", 1)):
        row = rows.loc[model, members]
        (shown,) = [row for row in rows_of(NETWORKS) if row[0] == name]
        attacks = [" / ".join(percent(row[f"{a}_{eps}"]) for eps in RADII) for a in ("fgsm", "ifgsm", "pgd")]
        assert shown[1:] == [percent(row["clean"]), percent(row["noise"]), *attacks]
