"""The settings of a run, each declared once. Imports no torch.

The command-line options (`cli.options`) and the keys of ``--config`` files (`config`) are made from these
declarations. A test compares them with the signature of `evaluate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from robust_interp.benchmark import forms
from robust_interp.benchmark.forms import Form

if TYPE_CHECKING:
    from torch import nn

    from robust_interp import data

PROTOCOLS = ("final", "worst")
AVERAGES = ("probabilities", "logits")
SUBSETS = ("first", "random", "stratified")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
COMPILE = ("auto", "on", "off")
JOURNALS = ("auto", "wal", "delete")
ATTACK_PRECISIONS = ("float32", "tf32", "bf16")

STRONG = forms.SPECS_OR_NONE.bare  # attacks of --strong without a list
STRONG_N = 200

DEFAULT_SEEDS = (0, 1, 2)  # train seeds of the default run

ATTACKS = (
    "attacks, e.g. 'fgsm,pgd(alpha=eps/4,steps=50,restarts=5),pgd_l2(eps=0.5)': fgsm, ifgsm, mifgsm, pgd, "
    "pgd_l2, apgd_ce, apgd_dlr, apgd_t, square, cw, deepfool, autoattack, a torchattacks class such as "
    "NIFGSM(steps=10), or none"
)


@dataclass(frozen=True)
class SettingInfo:
    """Description of a setting besides its name and default.

    Attributes:
        form: How its values are written.
        help: Help text, one phrase.
        unit: Unit of its numbers; '' for counts and for values that are not numbers.
        usual: Description of the default for the help; None shows the default value.
    """

    form: Form
    help: str
    unit: str = ""
    usual: str | None = None

    def text(self, default: object, usual: str | None = None) -> str:
        """Return the help of an option with this default; `usual` replaces the attribute of this name."""
        unit = f", in {self.unit}" if self.unit else ""
        usual = usual or self.usual or _in_words(default)
        return f"{self.help}{unit} (default: {usual})"


def _in_words(default: object) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _about(form: Form, help: str, unit: str = "", usual: str | None = None) -> dict[str, SettingInfo]:
    return {"about": SettingInfo(form, help, unit, usual)}


@dataclass(frozen=True)
class Request:
    """The settings of a run. None means the default of the data set or of the machine.

    In Python eps is in [0, 1] pixels; on a command line and in a file it is in units of 1/255.

    Attributes:
        modules: Model objects by name, which are measured instead of `models`.
    """

    models: tuple[str, ...] | None = field(
        default=None,
        metadata=_about(
            forms.NAMES,
            "models to measure, in any mixture: zoo names, globs, NAME@RECIPE, all, timm:NAME, "
            "hf:NAME, robustbench:NAME, package.module:factory, checkpoint folders",
            usual="all, with train seeds 0,1,2",
        ),
    )
    modules: Mapping[str, nn.Module] = field(default_factory=dict)
    mean: tuple[float, ...] | None = field(
        default=None,
        metadata=_about(
            forms.NUMBERS,
            "mean for the normalisation of models that are not from the zoo: one number per channel",
            unit="[0, 1] pixels",
            usual="as stored with the model",
        ),
    )
    std: tuple[float, ...] | None = field(
        default=None,
        metadata=_about(
            forms.NUMBERS,
            "standard deviation for the same normalisation: one number per channel",
            unit="[0, 1] pixels",
            usual="as stored with the model",
        ),
    )
    dataset: str | data.Dataset | None = field(
        default=None,
        metadata=_about(
            forms.DATASET,
            "test set: digits (included), cifar10, cifar100; or your own images: folder:PATH (one folder a "
            "class), imagenet:PATH, npz:FILE, parquet:FILE, hf:NAME",
            usual="that of the checkpoints named in full, else digits",
        ),
    )
    attacks: str = field(default="fgsm,ifgsm,pgd", metadata=_about(forms.SPECS, ATTACKS))
    eps: tuple[float, ...] | None = field(
        default=None,
        metadata=_about(
            forms.RADII,
            "Linf radii of the attacks, e.g. 1,2,4 or 8/255",
            unit="units of 1/255",
            usual="the dataset's: 8,16,32 for digits, 1,2,4 for CIFAR",
        ),
    )
    corruptions: str = field(
        default="noise",
        metadata=_about(
            forms.SPECS, "corruptions: noise, common, extra, all, names such as fog(severity=3), or none"
        ),
    )
    seeds: int | Sequence[int] | None = field(
        default=None,
        metadata=_about(
            forms.SEEDS,
            "train seeds to take from the zoo: 3 means 0,1,2; 0,4 means 0 and 4; '1,' means 1 alone",
            usual="every one",
        ),
    )
    ensembles: bool = field(
        default=True,
        metadata=_about(
            forms.SWITCH, "also measure the ensemble of each model's train seeds, as one averaged classifier"
        ),
    )
    ensemble: Sequence[str] = field(
        default=(),
        metadata=_about(
            forms.NAMES,
            "additional ensembles of the given models, such as in_resnet20+preact_resnet20, or all",
            usual="none",
        ),
    )
    ensemble_average: str | None = field(
        default=None,
        metadata=_about(forms.one_of(*AVERAGES), "what an ensemble averages", usual="probabilities"),
    )
    ensemble_attack: Sequence[str] | None = field(
        default=None,
        metadata=_about(
            forms.WAYS,
            "what attacks on ensembles target: white-box (the ensemble), member:0, mean-gradient",
            usual="white-box",
        ),
    )
    n: int | str | None = field(
        default=None,
        metadata=_about(
            forms.COUNT_OR_ALL,
            "number of test images to measure, from the first on, or all",
            usual="200 for digits, 1000 for CIFAR and own images",
        ),
    )
    subset: str | None = field(
        default=None,
        metadata=_about(
            forms.one_of(*SUBSETS),
            "which images the first n are: first in the dataset's order, random, or stratified: each class "
            "as often as in the whole set",
            usual="stratified for own images that lie class by class, else first",
        ),
    )
    subset_seed: int = field(
        default=0, metadata=_about(forms.SEED, "seed of the random and stratified subsets")
    )
    class_map: str | None = field(
        default=None,
        metadata=_about(
            forms.FILE,
            "CSV file with the columns folder and label, for folder:PATH",
            usual="folders sorted by name",
        ),
    )
    resize: int | None = field(
        default=None,
        metadata=_about(
            forms.COUNT,
            "resize the shorter side of every image, in the same way for all models",
            unit="pixels",
            usual="as each model's pretrained_cfg says",
        ),
    )
    crop: int | None = field(
        default=None,
        metadata=_about(
            forms.COUNT, "crop the centre to this height and width", unit="pixels", usual="likewise"
        ),
    )
    interpolation: str | None = field(
        default=None,
        metadata=_about(
            forms.one_of(*INTERPOLATIONS), "interpolation of --resize", usual="bilinear, if --resize is given"
        ),
    )
    skip_unreadable: bool = field(
        default=False,
        metadata=_about(forms.SWITCH, "leave out images that cannot be decoded; each is decoded to find out"),
    )
    decode_workers: int | None = field(
        default=None,
        metadata=_about(
            forms.SEED,
            "processes that decode image files ahead of the device; 0 decodes in the main process",
            usual="one for each CPU, 8 at most",
        ),
    )
    protocol: str = field(
        default="final",
        metadata=_about(
            forms.one_of(*PROTOCOLS),
            "final: each attack on all images; worst: cheap attacks first, each on the images that are "
            "still correct",
        ),
    )
    attack_precision: str = field(
        default="float32",
        metadata=_about(
            forms.one_of(*ATTACK_PRECISIONS),
            "what the gradients of attacks are computed in: float32, tf32 (CUDA), bf16; the attacked images "
            "are classified in float32",
        ),
    )
    compile: str = field(
        default="auto",
        metadata=_about(
            forms.one_of(*COMPILE),
            "whether networks are compiled for attacks, by torch.compile; auto: where that saves time",
        ),
    )
    eot: int | None = field(
        default=None,
        metadata=_about(
            forms.COUNT,
            "measure random models, too: gradients over this many draws of them, and a majority vote of as "
            "many; slow, one image at a time",
            usual="random models are refused",
        ),
    )
    round_to_8_bit: bool = field(
        default=False,
        metadata=_about(
            forms.SWITCH,
            "also classify attacked images rounded to multiples of 1/255, for the column rounded_accuracy",
        ),
    )
    batch_size: int | None = field(
        default=None, metadata=_about(forms.WHOLE, "images per batch", usual="250 on the CPU, 1000 on CUDA")
    )
    device: str | None = field(
        default=None,
        metadata=_about(forms.TEXT, "device: cpu, cuda, cuda:1", usual="cuda if available"),
    )
    seed: int = field(
        default=0, metadata=_about(forms.SEED, "seed of random attacks and generated corruptions")
    )
    data_dir: str | None = field(
        default=None,
        metadata=_about(
            forms.FOLDER,
            "folder of the dataset files",
            usual="$ROBUST_INTERP_DATA, then ~/.cache/robust-interp",
        ),
    )
    corruptions_dir: str | None = field(
        default=None,
        metadata=_about(
            forms.FOLDER,
            "folder of released images: CIFAR-10-C / CIFAR-100-C arrays, or ImageNet-C pictures",
            usual="none: corruptions are generated",
        ),
    )
    cache: str | None = field(
        default=None,
        metadata=_about(
            forms.FOLDER_OR_OFF,
            "folder in which generated corruptions are kept for later runs, or off",
            usual="$ROBUST_INTERP_CACHE, then ~/.cache/robust-interp/corruptions",
        ),
    )
    zoo: str | None = field(
        default=None,
        metadata=_about(
            forms.FOLDER,
            "folder of more checkpoints, searched before ./model_zoo and the package",
            usual="only those",
        ),
    )
    only_zoo: bool = field(
        default=False,
        metadata=_about(forms.SWITCH, "search for checkpoints only in --zoo"),
    )
    checkpoint: str | None = field(
        default=None,
        metadata=_about(
            forms.FILE,
            "weights file for the single registered name, timm:NAME or factory in --models",
            usual="as stored with the model",
        ),
    )
    weights_key: str | None = field(
        default=None,
        metadata=_about(
            forms.TEXT,
            "which of several state dicts in a weights file, e.g. state_dict_ema, or the prefix of its names",
            usual="the first of state_dict, model_state_dict, model, net, state_dict_ema, model_ema, ema",
        ),
    )
    strong: str | None = field(
        default=None,
        metadata=_about(
            forms.SPECS_OR_NONE,
            "add columns strong_<eps>: the worst of pgd and these attacks (if no list is given: "
            "apgd_ce,apgd_t)",
            usual="no such columns",
        ),
    )
    strong_n: int | None = field(
        default=None,
        metadata=_about(
            forms.COUNT,
            "number of test images for the strong columns, from the first on",
            usual=f"{STRONG_N}, or n if that is smaller",
        ),
    )
    threads: int | None = field(
        default=None,
        metadata=_about(
            forms.COUNT,
            "CPU threads per operation",
            usual="$OMP_NUM_THREADS, or the fastest number in a short test on the largest model",
        ),
    )


SETTINGS: dict[str, SettingInfo] = {
    each.name: each.metadata["about"] for each in fields(Request) if "about" in each.metadata
}

# Settings of a run that are not fields of Request.
BESIDE = {
    "out": SettingInfo(forms.FOLDER, "folder of the store and the CSV files"),
    "plugin": SettingInfo(
        forms.FILES,
        "plug-in file with your own attacks, corruptions, datasets or models (can be repeated)",
        usual="none",
    ),
    "store_journal": SettingInfo(
        forms.one_of(*JOURNALS),
        "journal of the store: wal if all its processes are on one machine, delete on a network file system",
        usual="auto: by the file system",
    ),
    "workers": SettingInfo(
        forms.COUNT,
        "worker processes, by Ray: pip install 'robust-interp[ray]'",
        usual="none; with --ray one per GPU",
    ),
    "ray": SettingInfo(
        forms.TEXT, "running Ray cluster for the workers: auto, ray://HOST:PORT", usual="one is started here"
    ),
    "gpus_per_worker": SettingInfo(
        forms.NUMBER, "GPUs that each worker takes, such as 0.5", usual="an equal part of all, at most one"
    ),
}

DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(Request) if each.name in SETTINGS}
DEFAULTS |= {"out": "results", "plugin": [], "store_journal": JOURNALS[0]}
DEFAULTS |= {"workers": None, "ray": None, "gpus_per_worker": None}
