"""Every column of the tables, declared once: its name, type, unit, meaning and how it is computed.

The order of the declarations is the order of the columns. The CSV files, the tables in the terminal and in
LaTeX, the definitions in the report and docs/columns.md are generated from them. To add a column, declare it
here and compute its values: for the leaderboard in `of`, or in `leaderboard` or `mce` if they depend on other
rows or on a request; for results.csv in `rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, StrEnum
from typing import Any

from robust_interp.store.cells import FLOAT32

WORST, STRONG = "worst", "strong"
RANKED_BY = {"final": "pgd", "worst": WORST}  # protocol -> attack whose middle radius ranks the entries


class Type(StrEnum):
    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"


class Shown(Enum):
    """Where the terminal, LaTeX and the report show a column of the leaderboard."""

    ALWAYS = "before the measured columns"
    IF_DIFFERENT = "before them, where the lines differ in it"
    IF_UNLIKE = "before them, where lines that have it differ in it"
    IF_FILLED = "after them, where a line has it"
    IN_REPORT = "after them, in the report alone"
    NEVER = "nowhere: it is in the files"


class Kind(IntEnum):
    """The kind of measurement in a column, in the order of the columns."""

    CLEAN = 0
    MEAN = 1
    CORRUPTION = 2
    SEVERITY = 3
    ATTACK = 4
    WORST = 5
    STRONG = 6


@dataclass(frozen=True)
class Column:
    """One column of a table, or a family of columns that have `<...>` in their name.

    Attributes:
        name: Name of the column or family.
        type: Type of the values.
        meaning: Description in one or two plain sentences. Code is between backticks.
        unit: Unit of the values; empty without a unit.
        of: Computes the value from the row's `Entry` (leaderboard) or `Score` (columns at the end of
            results.csv).
        see: Page of docs/ with more details, without its suffix.
        optional: Whether leaderboard files may lack the column, because older versions did not write it.
        from_the_best: Whether the largest value is first when rows are sorted by the column.
        form: Format specification of the numbers in files; empty for two to six decimals, as many as needed.
        shown: Where a leaderboard shows the column to readers.
        kind: Kind of measurement; None for columns that are not measured.
    """

    name: str
    type: Type
    meaning: str
    unit: str = ""
    of: Callable[[Any], Any] | None = None
    see: str = ""
    optional: bool = False
    from_the_best: bool = False
    form: str = ""
    shown: Shown = Shown.NEVER
    kind: Kind | None = None


_text, _integer, _number = Type.TEXT, Type.INTEGER, Type.NUMBER

RESULTS = (
    Column(
        "model",
        _text,
        "Name of the model. An ensemble has the names of its members joined by `+`, with the kind "
        "of average or attack in brackets if it is not the default.",
    ),
    Column(
        "weights_sha256",
        _text,
        "SHA-256 of the weights file, of the state of a model object, or of an ensemble's members together.",
    ),
    Column("recipe", _text, "Recipe of the checkpoint's training."),
    Column("lambda_init", _text, "Interval in which act(λ) started, such as `0.20-0.25`."),
    Column(
        "train_seed", _integer, "Train seed. Empty for an ensemble, and for a model without a known seed."
    ),
    Column("members", _integer, "Number of models that are averaged. 1 is a single model."),
    Column("dataset", _text, "Data set."),
    Column("subset_hash", _text, "Hash of the data and of n. Equal hashes mean equal images."),
    Column(
        "n",
        _integer,
        "Number of images behind `accuracy`: the first n in the order that `subset` names, without it in the "
        "data set's own order.",
        unit="images",
    ),
    Column(
        "perturbation",
        _text,
        "Name of the perturbation, with the parameters that have no separate column.",
    ),
    Column("norm", _text, "Norm of the attack: `Linf`, `L2`, `L1` or `L0`."),
    Column(
        "eps_255",
        _number,
        "Linf radius. An L2 radius is part of `perturbation`, in [0, 1] pixels.",
        unit="1/255",
    ),
    Column("alpha_255", _number, "Step size of an Linf attack.", unit="1/255"),
    Column(
        "steps", _integer, "Number of steps. Empty where an attack counts queries or has its own schedule."
    ),
    Column("restarts", _integer, "Number of random starts; the worst start of each image is kept."),
    Column("severity", _integer, "Severity of a corruption, 1 to 5."),
    Column(
        "attack_seed",
        _integer,
        "Seed of the draws of a random attack. Empty for an attack that draws nothing.",
    ),
    Column("protocol", _text, "`final` or `worst`.", see="protocols"),
    Column("accuracy", _number, "Share of the n images that count as correct under the protocol.", unit="%"),
    Column("ci_low", _number, "Lower end of the 95 % Wilson interval of `accuracy`.", unit="%"),
    Column("ci_high", _number, "Upper end of the same interval.", unit="%"),
    Column(
        "max_delta_255",
        _number,
        "Largest change of any image, in the norm of the row: of one pixel for Linf, of the whole image "
        "for L2. Empty for L0.",
        unit="1/255",
    ),
    Column(
        "zero_grad",
        _number,
        "Share of the images whose gradient was exactly zero. They are not counted as robust.",
        unit="share, 0 to 1",
    ),
    Column(
        "asr",
        _number,
        "Attack success rate: 100 × broken / correct when clean, on the same images.",
        unit="%",
    ),
    Column(
        "agreement",
        _number,
        "Ensembles: share of the perturbed images on which all members predict the same class.",
        unit="%",
    ),
    Column(
        "improvement",
        _number,
        "Ensembles: accuracy minus the mean accuracy of the members under the same perturbation.",
        unit="points",
    ),
    Column(
        "corruption_source",
        _text,
        "`released`, or `generated@SEED`; constants other than CIFAR-C's are named in brackets.",
        see="corruptions",
    ),
    Column("precision", _text, "Floating-point precision of the measurement: `float32`."),
    Column("torch", _text, "Version of PyTorch."),
    Column("torchattacks", _text, "Version of torchattacks, for an attack."),
    Column("device", _text, "Device of the measurement."),
    Column("seconds", _number, "Time of the measurement; `n` / `seconds` is images per second.", unit="s"),
)

OF_PRECISION = (  # at the end of results.csv, only if an attack is not in float32
    Column(
        "attack_precision",
        _text,
        "Floating-point precision of the attack's gradients: `float32`, `tf32` or `bf16`; `float32` for an "
        "attack without gradients. The column is absent if all attacks are in float32. The attacked images "
        "are classified in `precision`.",
        of=lambda score: score.attack_precision or None,
        see="attacks",
    ),
    Column(
        "attack_precision_difference",
        _number,
        "Self-check of `attack_precision`: accuracy under the attack minus that under the same attack in "
        "float32, on the first images, which are attacked in both precisions. Given for at least one attack "
        "of each model.",
        unit="points",
        of=lambda score: score.precision_check and score.precision_check.difference,
        see="attacks",
    ),
)

OF_IMAGES = (  # at the end of results.csv, each only if a row has a value
    Column(
        "preprocessing",
        _text,
        "Preprocessing of image files, such as `resize=256,crop=224,bicubic`: the shorter side is resized, "
        "then the centre is cropped. Empty without preprocessing.",
        see="datasets",
        shown=Shown.IF_FILLED,
    ),
    Column(
        "subset",
        _text,
        "Order of the images from which the first n are taken: `random@SEED` or `stratified@SEED`. Empty for "
        "the data set's own order.",
        see="datasets",
        shown=Shown.IF_FILLED,
    ),
    Column(
        "skipped",
        _integer,
        "Number of image files of the data set that cannot be decoded and were left out.",
        unit="images",
        see="datasets",
        shown=Shown.IF_FILLED,
    ),
)
OF_IMAGES_COLUMNS = tuple(column.name for column in OF_IMAGES)

ON_REQUEST = (  # after OF_IMAGES, each only if a row has a value
    Column(
        "eot",
        _integer,
        "Number of draws over which the gradients of a random model are averaged; as many other draws vote "
        "on the class of an image. Empty for other models.",
        of=lambda score: score.classifier.eot or None,
        see="models",
    ),
    Column(
        "rounded_accuracy",
        _number,
        "As `accuracy`, after the attacked images are rounded to multiples of 1/255. Only with "
        "`--round-to-8-bit`.",
        unit="%",
        of=lambda score: score.rounded_accuracy,
        see="attacks",
    ),
    Column(
        "engine",
        _text,
        "Whether the model was compiled by torch.compile within the attack: `compiled`, or `compiled+eager` "
        "if only in part. Empty if not. The attacked images are always classified without compilation.",
        of=lambda score: score.engine or None,
        see="speed",
    ),
)

ENTRY = (
    Column(
        "rank",
        _integer,
        "Rank by PGD (protocol `final`) or by `worst` (protocol `worst`) at the middle of the measured "
        "radii, of two the larger. Only entries with the same protocol, images and precision of the attacks "
        "are ranked together; under `worst` the attacks must be the same, too. Equal accuracies share a "
        "rank. Empty if that column is missing, for rows that were not measured here, for transfer attacks, "
        "and at chance level.",
        shown=Shown.ALWAYS,
    ),
    Column(
        "model",
        _text,
        "Name of the model. The report adds ×k to the name of an ensemble of k models.",
        of=lambda entry: entry.card.model,
        shown=Shown.ALWAYS,
    ),
    Column(
        "recipe",
        _text,
        "Recipe of the checkpoints' training. In rows of RobustBench it is the threat model instead: `Linf`, "
        "`L2` or `corruptions`, followed by `+data` if the model was trained with additional data.",
        of=lambda entry: entry.card.recipe,
        shown=Shown.IF_DIFFERENT,
    ),
    Column(
        "lambda_init",
        _text,
        "Interval in which act(λ) started.",
        of=lambda entry: entry.card.lambda_init,
        shown=Shown.IF_DIFFERENT,
    ),
    Column(
        "seeds",
        _integer,
        "Number of train seeds that are averaged, or that form the ensemble.",
        of=lambda entry: entry.train_seeds,
        shown=Shown.ALWAYS,
    ),
    Column(
        "members",
        _integer,
        "Number of models that are averaged. 1 is a single model.",
        of=lambda entry: entry.card.members,
        shown=Shown.ALWAYS,
    ),
    Column(
        "params_m",
        _number,
        "Number of parameters; for an ensemble, of all members.",
        unit="millions",
        of=lambda entry: entry.card.params_m,
        form=".3f",
        shown=Shown.IN_REPORT,
    ),
    Column(
        "n_examples",
        _integer,
        "Number of images behind each accuracy.",
        unit="images",
        of=lambda entry: entry.n,
        shown=Shown.IF_DIFFERENT,
    ),
    Column(
        "protocol",
        _text,
        "`final`: accuracy on what each attack returns, over all images. `worst`: under attack, an image "
        "counts as correct only if it is correct when clean as well.",
        of=lambda entry: entry.protocol,
        see="protocols",
        shown=Shown.IF_DIFFERENT,
    ),
    Column(
        "agreement",
        _number,
        "Ensembles: share of the clean images on which all members predict the same class.",
        unit="%",
        of=lambda entry: entry.agreement,
        optional=True,
        from_the_best=True,
        shown=Shown.IF_FILLED,
    ),
    Column(
        "improvement",
        _number,
        "Ensembles: accuracy minus the mean accuracy of the members, in the ranking column.",
        unit="points",
        optional=True,
        from_the_best=True,
        shown=Shown.IF_FILLED,
    ),
)


def _accuracy(name: str, kind: Kind, meaning: str) -> Column:
    return Column(name, _number, meaning, unit="%", from_the_best=True, kind=kind)


ATTACK = _accuracy(
    "<attack>_<eps>",
    Kind.ATTACK,
    "Accuracy under an Linf attack; the number is the radius in units of 1/255, such as `pgd_2`. Parameters "
    "that are not the default are in brackets: `pgd(steps=40)_2`.",
)
ATTACK_L2 = _accuracy(
    "<attack>_l2_<eps>",
    Kind.ATTACK,
    "Accuracy under an L2 attack; the number is the radius in [0, 1] pixels, such as `apgd_ce_l2_0.5` or "
    "`pgd_l2_0.5`.",
)
ATTACK_ALONE = _accuracy(
    "<attack>",
    Kind.ATTACK,
    "Accuracy under an attack without a radius, such as `cw`: an image counts as broken at any distance.",
)

MEASURED = (
    _accuracy("clean", Kind.CLEAN, "Accuracy on the clean images."),
    _accuracy(
        "noise",
        Kind.MEAN,
        "Mean accuracy under impulse, speckle, Gaussian and shot noise, each the mean of its five "
        "severities.",
    ),
    _accuracy(
        "common15",
        Kind.MEAN,
        "Mean accuracy under the fifteen common corruptions. Absent if one of them is missing.",
    ),
    _accuracy(
        "all19",
        Kind.MEAN,
        "Mean accuracy under all nineteen corruptions. Absent if one of them is missing.",
    ),
    _accuracy(
        "<corruption>",
        Kind.CORRUPTION,
        "Mean accuracy under one corruption at its five severities, such as `fog`.",
    ),
    _accuracy(
        "<corruption>_<severity>",
        Kind.SEVERITY,
        "Accuracy under one corruption at one severity, 1 to 5, where not all five were measured.",
    ),
    ATTACK,
    ATTACK_L2,
    ATTACK_ALONE,
    _accuracy(
        f"{WORST}_<eps>",
        Kind.WORST,
        "Share of the images that are correct when clean and under every attack at that radius. Only under "
        "protocol `worst`.",
    ),
    _accuracy(
        f"{STRONG}_<eps>",
        Kind.STRONG,
        "Share of the first `strong_n` images that are correct when clean, under the row's PGD and under the "
        "attacks of `--strong`. They must be correct when clean under protocol `final`, too.",
    ),
)

# Descriptions of these attacks in the report, instead of the one of their family.
KNOWN_ATTACKS = {
    "fgsm": "Accuracy under the fast gradient sign method: one step of size ε.",
    "ifgsm": "Accuracy under iterated FGSM: sign steps of size α, kept within ε of the image.",
    "pgd": "Accuracy under projected gradient descent: as iterated FGSM, but from a random start within ε.",
}


def attacks_text(names: Mapping[str, str]) -> str:
    """Return the attacks behind columns, such as ``fgsm+pgd``; if they differ, with the columns.

    Args:
        names: Names of the worst of several attacks by column, such as ``worst(fgsm+pgd)``.
    """
    inside = {
        column: name.partition("(")[2].removesuffix(")").partition(",eps=")[0]
        for column, name in sorted(names.items(), key=lambda one: (len(one[0]), one[0]))
    }
    if len(set(inside.values())) > 1:
        return "; ".join(f"{column}: {attacks}" for column, attacks in inside.items())
    return next(iter(inside.values()), "")


def attacks_at(text: str, column: str) -> str:
    """Return the attacks behind one column, from a result of `attacks_text`."""
    by_column = dict(part.split(": ", 1) for part in text.split("; ") if ": " in part)
    return by_column.get(column, "") if by_column else text


def _of_entry(name: str) -> Callable[[Any], Any]:
    return lambda entry: entry.metadata.get(name)


STD = Column(
    "<measured>_std",
    _number,
    "Standard deviation over train seeds (n − 1 in the denominator) of the column before it. Empty for one "
    "seed and for an ensemble.",
    unit="points",
)

TAIL = (  # after the measured columns, each only if a row has a value
    Column(
        "strong_n",
        _integer,
        "Number of images behind the `strong` columns.",
        unit="images",
        of=lambda entry: entry.strong_n,
        shown=Shown.IF_FILLED,
    ),
    Column(
        "weights",
        _text,
        "Train seeds, or else the beginning of `weights_sha256`, of rows that differ in nothing else.",
        shown=Shown.IF_FILLED,
    ),
    Column(
        "worst_attacks",
        _text,
        "Attacks behind the `worst` columns, such as `fgsm+pgd`; with the columns if they differ in them.",
        of=lambda entry: attacks_text(entry.worst),
        see="protocols",
        shown=Shown.IF_UNLIKE,
    ),
    Column(
        "strong_attacks",
        _text,
        "Attacks behind the `strong` columns, such as `pgd+apgd_ce+apgd_t`; with the columns if they differ.",
        of=lambda entry: attacks_text(entry.strong_names),
        see="protocols",
        shown=Shown.IF_UNLIKE,
    ),
    Column(
        "attack_precision",
        _text,
        "Floating-point precision of the gradients of the attacks, `tf32` or `bf16`. Empty for float32.",
        of=lambda entry: "" if entry.attack_precision == FLOAT32 else entry.attack_precision,
        see="attacks",
        shown=Shown.IF_FILLED,
    ),
    *(replace(column, of=_of_entry(column.name)) for column in OF_IMAGES),
    Column(
        "audit",
        _text,
        "Outcome of the audits of all train seeds: `pass`, `partial` (all checks passed that were run, and "
        "some were left out), `open` (too few images to decide), `warn` or `fail`, with the number of "
        "images, the audited Linf radii in units of 1/255, and the number of checks if some were left out. "
        "Other radii were not audited. The last audit counts, whatever its attack and limits. In rows of "
        "RobustBench, `unreliable` is its own flag: AutoAttack's evaluation is potentially unreliable.",
        of=lambda entry: entry.audit,
        see="audit",
        shown=Shown.IF_FILLED,
    ),
    Column(
        "eot",
        _integer,
        "Number of draws over which the gradients of a random model are averaged; as many other draws vote "
        "on the class of an image.",
        of=lambda entry: entry.card.eot or None,
        see="models",
        shown=Shown.IF_FILLED,
    ),
    Column(
        "at_chance",
        _text,
        "`yes` if the clean accuracy of no train seed is significantly above guessing by 2 points, or by "
        "guessing itself if that is less. Such a row has no rank: its accuracy under attack says "
        "nothing about robustness.",
        of=lambda entry: "yes" if entry.at_chance else "",
        shown=Shown.IF_FILLED,
    ),
    Column(
        "incomplete",
        _text,
        "Number of finished measurements, of those that an unfinished run planned for the row over all train "
        "seeds, such as `12/33`. Empty for a complete row. Only with `leaderboard --partial`.",
        of=lambda entry: entry.incomplete,
        shown=Shown.IF_FILLED,
    ),
)

MCE = (
    Column(
        "mean_error15",
        _number,
        "Mean error over the fifteen common corruptions; lower is better. Only with `leaderboard --mce`.",
        unit="%",
        shown=Shown.IF_FILLED,
    ),
    Column(
        "mce(<baseline>)",
        _number,
        "Mean corruption error (mCE): each error divided by the baseline's, then the mean over the "
        "fifteen common corruptions. The baseline has 100; lower is better. Only with `leaderboard "
        "--mce`.",
        unit="%",
        shown=Shown.IF_FILLED,
    ),
    Column(
        "relative_mce(<baseline>)",
        _number,
        "Relative mCE: as mCE, with each error minus the clean error in place of the error. Only with "
        "`leaderboard --mce`.",
        unit="%",
        shown=Shown.IF_FILLED,
    ),
)

MCE_BEFORE = ("mce_abs", "mce_rel")  # the first two in files of version 0.1

SOURCE = (
    Column(
        "corruption_source",
        _text,
        "Source of the corrupted images: `released` for the published images, `generated@SEED` for images "
        "generated with that seed and the constants of CIFAR-C, or of the benchmark in brackets.",
        of=lambda entry: "+".join(sorted(entry.sources)),
        see="corruptions",
        shown=Shown.IF_UNLIKE,
    ),
    Column(
        "source",
        _text,
        "`measured` for rows measured with this program; `paper` or `robustbench` for quoted rows.",
        of=lambda entry: "measured",
        shown=Shown.IF_DIFFERENT,
    ),
)

LEADERBOARD = (*ENTRY, *MEASURED, STD, *TAIL, *MCE, *SOURCE)

AUDIT_FILE = "audit.csv"  # in a results folder
AUDIT = (
    Column("model", _text, "Name of the model."),
    Column("weights_sha256", _text, "SHA-256 of its weights, as in `results.csv`."),
    Column("recipe", _text, "Recipe of the checkpoint's training."),
    Column("lambda_init", _text, "Interval in which act(λ) started."),
    Column("train_seed", _integer, "Train seed."),
    Column("members", _integer, "Number of models that are averaged."),
    Column("dataset", _text, "Data set."),
    Column("check", _text, "Name of the check.", see="audit"),
    Column("eps_255", _number, "Linf radius of the check.", "1/255"),
    Column("verdict", _text, "`pass`, `open`, `warn`, `fail` or `not run`."),
    Column(
        "value",
        _number,
        "The number that is judged. For `step_size` it is the step in 1/255.",
        "%, points or 1/255",
    ),
    Column("ci_low", _number, "Lower end of its 95 % interval.", "as `value`"),
    Column("ci_high", _number, "Upper end of its 95 % interval.", "as `value`"),
    Column("threshold", _number, "Limit of the value.", "as `value`", see="audit"),
    Column("n", _integer, "Number of images behind the finding.", "images"),
    Column("detail", _text, "The finding as text, with its accuracies."),
)

COMPARISON = (
    Column("a", _text, "First entry."),
    Column("b", _text, "Second entry."),
    Column("dataset", _text, "Data set."),
    Column("protocol", _text, "`final` or `worst`."),
    Column("n", _integer, "Number of images.", "images"),
    Column("subset_hash", _text, "Hash of the images."),
    Column("column", _text, "Column that is compared."),
    Column("accuracy_a", _number, "Mean accuracy of A over the common train seeds.", "%"),
    Column("accuracy_b", _number, "Mean accuracy of B over the same seeds.", "%"),
    Column("difference", _number, "A minus B.", "points"),
    Column(
        "only_a",
        _integer,
        "Images that only A classifies correctly, summed over seeds and severities.",
        "images",
    ),
    Column(
        "only_b",
        _integer,
        "Images that only B classifies correctly, summed over seeds and severities.",
        "images",
    ),
    Column(
        "p",
        _number,
        "Exact p-value over images: sign-flip test, with one measurement of each image McNemar's.",
        form=".3g",
    ),
    Column("p_mid", _number, "The mid-p value of the same test.", form=".3g"),
    Column(
        "p_seeds",
        _number,
        "Welch's p-value of the difference over train seeds. Empty if an entry has fewer than two, or if all "
        "seeds of both agree exactly.",
        form=".3g",
    ),
    Column(
        "p_holm",
        _number,
        "The larger of `p` and `p_seeds`, adjusted over all columns of the table by Holm's method.",
        form=".3g",
    ),
    Column(
        "ci_low",
        _number,
        "Lower end of the 95 % Welch interval of the difference over train seeds, for this column alone.",
        "points",
    ),
    Column("ci_high", _number, "Upper end of that interval.", "points"),
    Column("seeds_a", _integer, "Train seeds of A."),
    Column("seeds_b", _integer, "Train seeds of B."),
    Column(
        "verdict",
        _text,
        "`significant`, `significant for these weights only` or `not significant`.",
        see="statistics",
    ),
)

CLASSES = (
    Column(
        "entry",
        _text,
        "Name of the row of the leaderboard: the model, and what distinguishes the row from other rows of "
        "that model, such as recipe, protocol, n, attack seed or precision.",
    ),
    Column("model", _text, "Name of the model."),
    Column("recipe", _text, "Recipe of the checkpoints' training."),
    Column("lambda_init", _text, "Interval in which act(λ) started."),
    Column("seeds", _integer, "Number of train seeds that are averaged, or that form the ensemble."),
    Column("members", _integer, "Number of models that are averaged."),
    Column("dataset", _text, "Data set."),
    Column("protocol", _text, "`final` or `worst`."),
    Column("column", _text, "Column of the leaderboard that is split by class."),
    Column(
        "measurements",
        _integer,
        "Number of measurements that are averaged: train seeds, times severities for a corruption.",
    ),
    Column("label", _integer, "Class, from 0."),
    Column("name", _text, "Name of the class, if it has one."),
    Column("n", _integer, "Number of images of the class.", "images"),
    Column(
        "accuracy", _number, "Share of the n images that count as correct, mean over the measurements.", "%"
    ),
    Column(
        "ci_low",
        _number,
        "Lower end of the 95 % Wilson interval over the n images, each of which counts once.",
        "%",
    ),
    Column("ci_high", _number, "Upper end of that interval.", "%"),
)
CONFUSION = (
    Column(
        "predicted_<label>",
        _integer,
        "Number of images of the row's class that were predicted as class `<label>`, summed over the "
        "measurements. Absent for `worst` and `strong`, where an image has several predictions, and with "
        "more than 2,000 classes.",
        "images",
    ),
    Column(
        "predicted_none",
        _integer,
        "Number of images that were predicted as the row's class but do not count as correct (their gradient "
        "was zero or, under protocol `worst`, they are wrong when clean), or that have no prediction (values "
        "were not finite, or the image was inherited as broken). Absent as `predicted_<label>`.",
        "images",
    ),
)

_OF_MODEL = ("model", "weights_sha256", "recipe", "lambda_init", "train_seed", "members")
EXTERNAL = (
    Column("file", _text, "Name of the file with the images."),
    Column("file_sha256", _text, "SHA-256 of that file."),
    *(column for column in RESULTS if column.name in _OF_MODEL),
    Column("dataset", _text, "Data set of the original images and of the labels."),
    Column(
        "subset_hash", _text, "Hash of the data and of the choice of images. Equal hashes mean equal images."
    ),
    Column("n", _integer, "Number of images.", unit="images"),
    Column("column", _text, "`external_<eps>`, or `external_l2_<eps>` with eps in [0, 1] pixels."),
    Column("norm", _text, "Norm of the ball that was checked: `Linf` or `L2`."),
    Column("eps_255", _number, "Linf radius that was checked.", unit="1/255"),
    Column("max_delta_255", _number, "Largest change of any image, in the norm of the row.", unit="1/255"),
    Column("clean", _number, "Accuracy on the unchanged images.", unit="%"),
    Column("accuracy", _number, "Accuracy on the images of the file.", unit="%"),
    Column("ci_low", _number, "Lower end of the 95 % Wilson interval of `accuracy`.", unit="%"),
    Column("ci_high", _number, "Upper end of the same interval.", unit="%"),
    Column("asr", _number, "Attack success rate: 100 × broken / correct when clean.", unit="%"),
    Column("torch", _text, "Version of PyTorch."),
    Column("device", _text, "Device of the measurement."),
    Column("source", _text, "`external`: the images were made elsewhere."),
)

TABLES = {
    "results.csv": (*RESULTS, *OF_PRECISION, *OF_IMAGES, *ON_REQUEST),
    "leaderboard.csv": LEADERBOARD,
    AUDIT_FILE: AUDIT,
    "leaderboard compare": COMPARISON,
    "external.csv": EXTERNAL,
    "leaderboard classes": (*CLASSES, *CONFUSION),
}


def _names(columns: Iterable[Column]) -> list[str]:
    return [column.name for column in columns]


def integers(columns: Iterable[Column]) -> list[str]:
    """Return the names of the integer columns. Their pandas type is Int64, which allows missing values."""
    return [column.name for column in columns if column.type is Type.INTEGER]


RESULT_COLUMNS, ENTRY_COLUMNS, TAIL_COLUMNS = _names(RESULTS), _names(ENTRY), _names(TAIL)
CLASS_COLUMNS, EXTERNAL_COLUMNS = _names(CLASSES), _names(EXTERNAL)
SOURCE_COLUMNS, COMPARISON_COLUMNS = _names(SOURCE), _names(COMPARISON)

DECIMALS = 6  # of numbers in files without `form`: a table that rounds them rounds as from the exact numbers
FORMS = {column.name: column.form for table in TABLES.values() for column in table if column.form}
_TEXTS = {column.name for table in TABLES.values() for column in table if column.type is Type.TEXT}


def is_text(name: str) -> bool:
    """Return whether a column holds text, which is aligned left."""
    return name in _TEXTS
