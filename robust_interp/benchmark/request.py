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
from robust_interp.core.choices import AVERAGES, INTERPOLATIONS, PROTOCOLS, SUBSETS

if TYPE_CHECKING:
    from torch import nn

    from robust_interp import data

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
    """Description of a setting of a run or an audit, besides its name and default.

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


def declared(form: Form, help: str, unit: str = "", usual: str | None = None) -> dict[str, SettingInfo]:
    """Return the metadata of a dataclass field that is a setting; `settings_of` reads it."""
    return {"about": SettingInfo(form, help, unit, usual)}


def settings_of(kind: type) -> dict[str, SettingInfo]:
    """Return the declared settings of a dataclass by their names."""
    return {each.name: each.metadata["about"] for each in fields(kind) if "about" in each.metadata}


@dataclass(frozen=True)
class Request:
    """The settings of a run. None means the default of the data set or of the machine.

    In Python eps is in [0, 1] pixels; on a command line and in a file it is in units of 1/255.

    Attributes:
        modules: Model objects by name, which are measured instead of `models`.
    """

    models: tuple[str, ...] | None = field(
        default=None,
        metadata=declared(
            forms.NAMES,
            "models to measure, in any mixture: zoo names, globs, NAME@RECIPE, all, timm:NAME, "
            "hf:NAME, robustbench:NAME, package.module:factory, checkpoint folders",
            usual="all, with train seeds 0,1,2",
        ),
    )
    modules: Mapping[str, nn.Module] = field(default_factory=dict)
    mean: tuple[float, ...] | None = field(
        default=None,
        metadata=declared(
            forms.NUMBERS,
            "mean for the normalisation of models that are not from the zoo: one number per channel",
            unit="[0, 1] pixels",
            usual="as stored with the model",
        ),
    )
    std: tuple[float, ...] | None = field(
        default=None,
        metadata=declared(
            forms.NUMBERS,
            "standard deviation for the normalisation of models that are not from the zoo: one number per "
            "channel",
            unit="[0, 1] pixels",
            usual="as stored with the model",
        ),
    )
    dataset: str | data.Dataset | None = field(
        default=None,
        metadata=declared(
            forms.DATASET,
            "test set: digits (included), cifar10, cifar100; or your own images: folder:PATH (one folder per "
            "class), imagenet:PATH, npz:FILE, parquet:FILE, hf:NAME",
            usual="the data set of the checkpoints named in full, otherwise digits",
        ),
    )
    attacks: str = field(default="fgsm,ifgsm,pgd", metadata=declared(forms.SPECS, ATTACKS))
    eps: tuple[float, ...] | None = field(
        default=None,
        metadata=declared(
            forms.RADII,
            "Linf radii of the attacks, e.g. 1,2,4 or 8/255",
            unit="units of 1/255",
            usual="set by the data set: 8,16,32 for digits, 1,2,4 for CIFAR",
        ),
    )
    corruptions: str = field(
        default="noise",
        metadata=declared(
            forms.SPECS, "corruptions: noise, common, extra, all, names such as fog(severity=3), or none"
        ),
    )
    seeds: int | Sequence[int] | None = field(
        default=None,
        metadata=declared(
            forms.SEEDS,
            "train seeds to take from the zoo: 3 means 0,1,2; 0,4 means 0 and 4; '1,' means 1 alone",
            usual="all",
        ),
    )
    ensembles: bool = field(
        default=True,
        metadata=declared(
            forms.SWITCH, "also measure the ensemble of each model's train seeds, as one averaged classifier"
        ),
    )
    ensemble: Sequence[str] = field(
        default=(),
        metadata=declared(
            forms.NAMES,
            "additional ensembles of the given models, such as in_resnet20+preact_resnet20, or all",
            usual="none",
        ),
    )
    ensemble_average: str | None = field(
        default=None,
        metadata=declared(forms.one_of(*AVERAGES), "what an ensemble averages", usual="probabilities"),
    )
    ensemble_attack: Sequence[str] | None = field(
        default=None,
        metadata=declared(
            forms.WAYS,
            "what attacks on ensembles target: white-box (the ensemble), member:0 (its first member), "
            "mean-gradient (the mean of the members' losses)",
            usual="white-box",
        ),
    )
    n: int | str | None = field(
        default=None,
        metadata=declared(
            forms.COUNT_OR_ALL,
            "number of test images to measure, from the first on, or all",
            usual="200 for digits, 1000 for CIFAR and own images",
        ),
    )
    subset: str | None = field(
        default=None,
        metadata=declared(
            forms.one_of(*SUBSETS),
            "order of the images, of which the first n are measured: first (order of the data set), random, "
            "or stratified (random, with each class as often as in the whole set)",
            usual="stratified for own images that are sorted by class, otherwise first",
        ),
    )
    subset_seed: int = field(
        default=0, metadata=declared(forms.SEED, "seed of the random and stratified subsets")
    )
    class_map: str | None = field(
        default=None,
        metadata=declared(
            forms.FILE,
            "CSV file with the columns folder and label, for folder:PATH",
            usual="folders sorted by name",
        ),
    )
    resize: int | None = field(
        default=None,
        metadata=declared(
            forms.COUNT,
            "resize the shorter side of every image, in the same way for all models",
            unit="pixels",
            usual="as each model's pretrained_cfg says",
        ),
    )
    crop: int | None = field(
        default=None,
        metadata=declared(
            forms.COUNT,
            "crop the centre to this height and width",
            unit="pixels",
            usual="as each model's pretrained_cfg says",
        ),
    )
    interpolation: str | None = field(
        default=None,
        metadata=declared(
            forms.one_of(*INTERPOLATIONS), "interpolation of --resize", usual="bilinear, if --resize is given"
        ),
    )
    skip_unreadable: bool = field(
        default=False,
        metadata=declared(
            forms.SWITCH,
            "leave out images that cannot be decoded; to find them, all are decoded at the start",
        ),
    )
    decode_workers: int | None = field(
        default=None,
        metadata=declared(
            forms.SEED,
            "number of processes that decode image files in advance; 0 decodes in the main process",
            usual="one per CPU, at most 8",
        ),
    )
    protocol: str = field(
        default="final",
        metadata=declared(
            forms.one_of(*PROTOCOLS),
            "final: each attack on all images; worst: cheap attacks first, each on the images that are "
            "still correct",
        ),
    )
    attack_precision: str = field(
        default="float32",
        metadata=declared(
            forms.one_of(*ATTACK_PRECISIONS),
            "precision of the gradients of attacks: float32, tf32 (CUDA), bf16; attacked images are always "
            "classified in float32",
        ),
    )
    compile: str = field(
        default="auto",
        metadata=declared(
            forms.one_of(*COMPILE),
            "compile networks for attacks with torch.compile: on, off, or auto (only where it saves time)",
        ),
    )
    eot: int | None = field(
        default=None,
        metadata=declared(
            forms.COUNT,
            "also measure random models: attacks use the mean gradient of this many draws, and the majority "
            "vote of as many other draws is the predicted class; slow, one image at a time",
            usual="random models are refused",
        ),
    )
    round_to_8_bit: bool = field(
        default=False,
        metadata=declared(
            forms.SWITCH,
            "also classify attacked images rounded to multiples of 1/255, for the column rounded_accuracy",
        ),
    )
    batch_size: int | None = field(
        default=None, metadata=declared(forms.WHOLE, "images per batch", usual="250 on the CPU, 1000 on CUDA")
    )
    device: str | None = field(
        default=None,
        metadata=declared(forms.TEXT, "device: cpu, cuda, cuda:1", usual="cuda if available"),
    )
    seed: int = field(
        default=0, metadata=declared(forms.SEED, "seed of random attacks and generated corruptions")
    )
    data_dir: str | None = field(
        default=None,
        metadata=declared(
            forms.FOLDER,
            "folder of the data set files",
            usual="$ROBUST_INTERP_DATA, then ~/.cache/robust-interp",
        ),
    )
    corruptions_dir: str | None = field(
        default=None,
        metadata=declared(
            forms.FOLDER,
            "folder of released images: CIFAR-10-C / CIFAR-100-C arrays, or ImageNet-C pictures",
            usual="none: corruptions are generated",
        ),
    )
    cache: str | None = field(
        default=None,
        metadata=declared(
            forms.FOLDER_OR_OFF,
            "folder in which generated corruptions are kept for later runs, or off",
            usual="$ROBUST_INTERP_CACHE, then ~/.cache/robust-interp/corruptions",
        ),
    )
    zoo: str | None = field(
        default=None,
        metadata=declared(
            forms.FOLDER,
            "additional folder of checkpoints, searched before ./model_zoo and the package",
            usual="none",
        ),
    )
    only_zoo: bool = field(
        default=False,
        metadata=declared(forms.SWITCH, "search for checkpoints only in --zoo"),
    )
    checkpoint: str | None = field(
        default=None,
        metadata=declared(
            forms.FILE,
            "weights file for the single registered name, timm:NAME or factory in --models",
            usual="as stored with the model",
        ),
    )
    weights_key: str | None = field(
        default=None,
        metadata=declared(
            forms.TEXT,
            "key of the state dict in a weights file that has several, e.g. state_dict_ema, or the common "
            "prefix of its tensor names",
            usual="the first of state_dict, model_state_dict, model, net, state_dict_ema, model_ema, ema",
        ),
    )
    strong: str | None = field(
        default=None,
        metadata=declared(
            forms.SPECS_OR_NONE,
            "add columns strong_<eps>: the worst of pgd and these attacks (if no list is given: "
            "apgd_ce,apgd_t)",
            usual="no such columns",
        ),
    )
    strong_n: int | None = field(
        default=None,
        metadata=declared(
            forms.COUNT,
            "number of test images for the strong columns, from the first on",
            usual=f"{STRONG_N}, or n if that is smaller",
        ),
    )
    threads: int | None = field(
        default=None,
        metadata=declared(
            forms.COUNT,
            "CPU threads per operation",
            usual="$OMP_NUM_THREADS, or the fastest number in a short test on the largest model",
        ),
    )


SETTINGS = settings_of(Request)

# Settings of a run that are not fields of Request.
BESIDE = {
    "out": SettingInfo(forms.FOLDER, "folder of the store and the CSV files"),
    "plugin": SettingInfo(
        forms.FILES,
        "plug-in file with your own attacks, corruptions, data sets or models (can be repeated)",
        usual="none",
    ),
    "store_journal": SettingInfo(
        forms.one_of(*JOURNALS),
        "SQLite journal of the store: wal if all processes that use it are on one machine, delete on a "
        "network file system",
        usual="auto: chosen by the type of the file system",
    ),
    "workers": SettingInfo(
        forms.COUNT,
        "number of worker processes, started with Ray: pip install 'robust-interp[ray]'",
        usual="no workers; with --ray, one per GPU",
    ),
    "ray": SettingInfo(
        forms.TEXT,
        "running Ray cluster for the workers: auto, ray://HOST:PORT",
        usual="Ray is started on this machine",
    ),
    "gpus_per_worker": SettingInfo(
        forms.NUMBER,
        "number of GPUs per worker, such as 0.5",
        usual="all GPUs shared equally, at most one per worker",
    ),
}

DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(Request) if each.name in SETTINGS}
DEFAULTS |= {"out": "results", "plugin": [], "store_journal": JOURNALS[0]}
DEFAULTS |= {"workers": None, "ray": None, "gpus_per_worker": None}
