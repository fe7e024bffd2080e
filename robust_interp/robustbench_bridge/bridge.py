"""Access to RobustBench: the patched package, its models and its published results."""

from __future__ import annotations

import ast
import csv
import importlib
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import metadata, resources, util
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from robust_interp import zoo
from robust_interp.core.csv_text import escape_csv_value
from robust_interp.core.errors import UserError
from robust_interp.core.extras import install
from robust_interp.core.files import make_folder, sha256_of, write_text
from robust_interp.core.registry import unknown
from robust_interp.corruptions import SEVERITIES
from robust_interp.models.merges import Device
from robust_interp.robustbench_bridge import robustbench_names
from robust_interp.store.cells import digest
from robust_interp.zoo.weights_files import mistaken_for_weights

MODEL_DIR = "ROBUSTBENCH_MODEL_DIR"  # environment variable with the folder of weights
DATASETS = ("cifar10", "cifar100")
THREAT_MODELS = ("Linf", "L2", "corruptions")
PUBLISHED = "robustbench.csv"  # its published results, in the folder of our leaderboards
_MEND = "pip install --force-reinstall --no-deps robustbench==1.1.1"
_ATTACK_SEED = 0


@contextmanager
def robustbench(download: bool = False) -> Iterator[ModuleType]:
    """Patch the package robustbench inside a `with` block, and yield it.

    ``with robustbench() as rb: rb.benchmark(classifier, n_examples=200, eps=8/255, data_dir=...)`` measures
    anything that maps pixels (N, 3, 32, 32) in [0, 1] to logits, such as a `Classifier`. AutoAttack uses a
    fixed seed.

    Args:
        download: Whether missing data and weights may be downloaded.

    Raises:
        UserError: if RobustBench is not installed, was replaced by torchattacks' stub, or is an unsupported
            version.
    """
    _require_installed()
    with ExitStack() as stack:
        for name, stand_in in missing_modules().items():
            stack.enter_context(_set(sys.modules, name, stand_in))
        try:
            package = importlib.import_module("robustbench")
            modules = {
                name: importlib.import_module(f"robustbench.{name}") for name in ("data", "eval", "utils")
            }
        except ImportError as error:
            raise UserError(
                f"RobustBench needs a package that is missing: {error}; "
                f"install all of them with {install('robustbench')}"
            ) from error
        robustbench_names.register(zoo.checkpoints())
        _require_known(modules)
        for module, name, value in _mends(modules, download):
            stack.enter_context(_set(vars(modules[module]), name, value))
        yield package


@contextmanager
def _set(namespace: MutableMapping, name: str, value: Any) -> Iterator[None]:
    there, before = name in namespace, namespace.get(name)
    namespace[name] = value
    try:
        yield
    finally:
        namespace.pop(name, None)
        if there:
            namespace[name] = before


def _require_installed() -> None:
    """Raise a UserError if RobustBench is not installed, or was overwritten by torchattacks' stub."""
    try:
        metadata.distribution("robustbench")
    except metadata.PackageNotFoundError as error:
        raise UserError(
            "RobustBench is not installed (the robustbench that comes with torchattacks is only a stub): "
            f"{install('robustbench')}"
        ) from error
    spec = util.find_spec("robustbench")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not any(_defines_benchmark(Path(place) / "eval.py") for place in places):
        raise UserError(f"torchattacks replaced RobustBench by a stub; repair it with: {_MEND}")


def _defines_benchmark(path: Path) -> bool:
    if not path.is_file():
        return False
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == "benchmark" for node in tree.body)


def missing_modules() -> dict[str, ModuleType]:
    """Return replacements for modules that RobustBench imports but does not depend on."""
    modules = {}
    if not _is_importable("pkg_resources"):
        modules["pkg_resources"] = _module("pkg_resources", resource_filename=_resource_filename)
    if not _is_importable("autoattack"):
        attack, state = _autoattack()
        modules["autoattack"] = _module("autoattack", AutoAttack=attack)
        modules["autoattack.state"] = _module("autoattack.state", EvaluationState=state)
    return modules


def _is_importable(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except ValueError:  # sys.modules has None, or a module without a spec
        return sys.modules[name] is not None


def _module(name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(contents)
    return module


def _resource_filename(package: str, name: str) -> str:
    return str(resources.files(package.rpartition(".")[0] or package) / name)


def _autoattack() -> tuple[type, type]:
    """Return pyautoattack's attack and state classes with the interface that RobustBench expects.

    Raises:
        UserError: if pyautoattack is not installed.
    """
    try:
        import pyautoattack.autoattack as original
    except ImportError as error:
        raise UserError(f"RobustBench's AutoAttack is missing: {install('autoattack')}") from error

    class Attack(original.AutoAttack):
        def __init__(
            self,
            model: Callable[[Tensor], Tensor],
            norm: str = "Linf",
            eps: float = 0.3,
            version: str = "standard",
            device: Device = "cpu",
            log_path: str | os.PathLike | None = None,
        ) -> None:
            super().__init__(model, norm=norm, eps=eps, version=version, device=device, seed=_ATTACK_SEED)
            self.log_path = log_path

        def run_standard_evaluation(
            self,
            images: Tensor,
            labels: Tensor,
            bs: int = 250,
            state_path: str | os.PathLike | None = None,
        ) -> Tensor:
            if state_path is not None and Path(state_path).exists():
                raise UserError(f"pyautoattack cannot resume from its {state_path}: use another file")
            state_path = None if state_path is None else Path(state_path)
            with nullcontext() if self.log_path is None else _logged(self.logger, self.log_path):
                adversarial, _predicted = super().run_standard_evaluation(
                    images, labels, batch_size=bs, state_path=state_path
                )
            return adversarial

    class State(original.EvaluationState):
        @property
        def robust_flags(self) -> Tensor:
            return super().robust_flags.float()  # RobustBench computes their mean

    return Attack, State


@contextmanager
def _logged(logger: logging.Logger, path: str | os.PathLike) -> Iterator[None]:
    handler, level = logging.FileHandler(path), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()


# Names in the modules of RobustBench 1.1.1 that are patched or used.
_KNOWN = {
    "data": ("CORRUPTIONS_DICT", "_clean_dataset_loaders", "_load_dataset", "datasets", "zenodo_download"),
    "eval": ("AutoAttack", "all_models", "clean_accuracy", "corruptions_evaluation"),
    "utils": ("download_gdrive_new", "load_model"),
}


def _require_known(modules: dict[str, ModuleType]) -> None:
    """Raise a UserError if RobustBench lacks a name in _KNOWN: the patches would have no effect."""
    for module, names in _KNOWN.items():
        lacking = [name for name in names if not hasattr(modules[module], name)]
        if lacking:
            missing = f"robustbench.{module} has no {', '.join(lacking)}"
            raise UserError(f"{missing}: only RobustBench 1.1.1 is supported; {_MEND}")


def _mends(modules: dict[str, ModuleType], download: bool) -> list[tuple[str, str, Any]]:
    """Return the patches as (module, name, new value)."""
    data, evaluation = modules["data"], modules["eval"]
    mends: list[tuple[str, str, Any]] = [
        ("eval", "corruptions_evaluation", _corruptions_evaluation(data, evaluation))
    ]
    if "pyautoattack" in evaluation.AutoAttack.__module__:  # the user aliased it before
        attack, state = _autoattack()
        mends += [("eval", "AutoAttack", attack), ("eval", "EvaluationState", state)]
    if not download:
        kinds = {"cifar10": data.datasets.CIFAR10, "cifar100": data.datasets.CIFAR100}
        loaders = {
            dataset: _offline(data, kinds[dataset.value]) if dataset.value in kinds else loader
            for dataset, loader in data._clean_dataset_loaders.items()
        }
        mends += [
            ("data", "_clean_dataset_loaders", loaders),
            ("data", "zenodo_download", _no_corruptions),
            ("utils", "download_gdrive_new", _no_weights),
        ]
    return mends


def _offline(data: ModuleType, kind: type) -> Callable[..., tuple[Tensor, Tensor]]:
    def load_clean(
        n_examples: int | None, data_dir: str, transform: Callable | None
    ) -> tuple[Tensor, Tensor]:
        try:
            dataset = kind(root=data_dir, train=False, transform=transform, download=False)
        except RuntimeError as error:
            raise UserError(
                f"{kind.__name__} is not in {data_dir}: run robust-interp data {kind.__name__.lower()} "
                f"--download --data-dir {data_dir}"
            ) from error
        return data._load_dataset(dataset, n_examples)

    return load_clean


def _no_corruptions(_record: str, archives: set[str], save_dir: Path) -> None:
    folder = next(iter(archives)).removesuffix(".tar")
    raise UserError(f"{folder} is not in {save_dir}: unpack the released {folder}.tar there")


def _no_weights(gdrive_id: str, path: Path) -> None:
    raise UserError(
        f"there is no weights file {path}, and nothing is downloaded automatically: "
        "run robust-interp robustbench download --models NAME"
    )


def _corruptions_evaluation(data: ModuleType, evaluation: ModuleType) -> Callable[..., tuple[float, float]]:
    original = evaluation.corruptions_evaluation

    def corruptions_evaluation(
        batch_size: int,
        data_dir: str,
        dataset: Any,  # RobustBench's enums, importable only inside the block
        threat_model: Any,
        device: Device,
        model: nn.Module,
        n_examples: int,
        to_disk: bool,
        prepr: Callable,
        model_name: str | None,
    ) -> tuple[float, float]:
        """Return accuracy and error, each averaged over all corruptions and severities."""
        if dataset.value not in DATASETS:
            rest = device, model, n_examples, to_disk, prepr, model_name
            return original(batch_size, data_dir, dataset, threat_model, *rest)
        accuracies = {}
        for corruption in data.CORRUPTIONS_DICT[dataset][threat_model]:
            for severity in SEVERITIES:
                images, labels = data.load_corruptions_cifar(
                    dataset, n_examples, severity, data_dir, [corruption]
                )
                accuracies[corruption, severity] = evaluation.clean_accuracy(
                    model, images, labels, batch_size=batch_size, device=device
                )
        if to_disk:
            _add_row(Path("model_info") / dataset.value / "corruptions", model_name, accuracies)
        mean = math.fsum(accuracies.values()) / len(accuracies)
        return mean, 1 - mean

    return corruptions_evaluation


def _add_row(folder: Path, model_name: str | None, accuracies: dict[tuple[str, int], float]) -> None:
    """Write a model's row to RobustBench's table of all corruptions."""
    import pandas as pd

    path = make_folder(folder) / "unaggregated_results.csv"
    model_name = escape_csv_value(model_name)
    table = pd.DataFrame(accuracies, index=[model_name])
    if path.is_file():
        before = pd.read_csv(path, header=[0, 1], index_col=0)
        pairs: Any = before.columns  # pandas' type stubs lack the two levels
        before.columns = pd.MultiIndex.from_tuples((name, int(level)) for name, level in pairs)
        table = pd.concat([before.drop(index=model_name, errors="ignore"), table])
    write_text(path, table.to_csv())


def load(
    name: str,
    dataset: str = "cifar10",
    threat_model: str = "Linf",
    folder: str | os.PathLike | None = None,
    download: bool = False,
) -> nn.Module:
    """Load a model of RobustBench's zoo, in eval mode. It takes pixels in [0, 1].

    Args:
        name: Name in RobustBench, such as ``Standard``.
        dataset: ``cifar10`` or ``cifar100``.
        threat_model: ``Linf``, ``L2`` or ``corruptions``.
        folder: Folder of the weights in RobustBench's layout, ``<dataset>/<threat model>/<name>.pt``. None
            takes $ROBUSTBENCH_MODEL_DIR, or else ./models as in RobustBench.
        download: Whether missing weights may be downloaded.

    Raises:
        UserError: if the name is unknown, weights are missing, are a web page, or cannot be loaded without
            running code from their file.
    """
    for what, value, allowed in (
        ("dataset", dataset, DATASETS),
        ("threat model", threat_model, THREAT_MODELS),
    ):
        if value not in allowed:
            raise UserError(f"{what} {value!r} of RobustBench is not one of {', '.join(allowed)}")
    with robustbench(download) as package, _set(os.environ, "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1"):
        folder = _model_dir(folder)
        files = _weights(package, name, dataset, threat_model, folder)
        if not download:
            _require_weights(name, files)
        try:
            model = package.load_model(name, folder, dataset, threat_model)
        except UserError:
            raise
        except Exception as error:  # files and networks may raise anything
            _refuse_mistaken(files)
            reason = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
            raise UserError(f"cannot load {name} from {files[0].parent}: {reason}") from error
    return model.eval()


def weights(
    name: str, dataset: str, threat_model: str, folder: str | os.PathLike | None = None
) -> list[Path]:
    """Return the paths of the weights files that `load` reads. Some models have several.

    Args:
        name: See `load`.
        dataset: See `load`.
        threat_model: See `load`.
        folder: See `load`.

    Raises:
        UserError: if RobustBench has no such model for this data set and threat model; or see `robustbench`.
    """
    with robustbench() as package:
        return _weights(package, name, dataset, threat_model, _model_dir(folder))


def sha256(name: str, dataset: str, threat_model: str) -> str:
    """Return one hash of all weights files that `load` reads for these arguments."""
    hashes = [sha256_of(path) for path in weights(name, dataset, threat_model)]
    return hashes[0] if len(hashes) == 1 else digest(hashes)


def published_clean(name: str, dataset: str, threat_model: str) -> float | None:
    """Return the clean accuracy in percent that RobustBench published for a model; None if there is none."""
    path = zoo.bundled("leaderboards") / PUBLISHED
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            listed = row["model"], row["dataset"], row["recipe"].removesuffix("+data")
            if listed == (name, dataset, threat_model):
                return float(row["clean"])
    return None


def _model_dir(folder: str | os.PathLike | None) -> Path:
    return Path(folder or os.environ.get(MODEL_DIR, "models"))


def _weights(package: ModuleType, name: str, dataset: str, threat_model: str, folder: Path) -> list[Path]:
    import timm
    import torch

    timm_name = f"{name.lower().replace('-', '_')}_{dataset}_{threat_model.lower()}"
    if timm.is_model(timm_name):  # RobustBench tries timm first
        cfg: Any = timm.get_pretrained_cfg(timm_name)
        return [Path(cfg.file or Path(torch.hub.get_dir()) / "checkpoints" / Path(cfg.url).name)]
    kinds = package.eval.all_models
    of_dataset = next(models for kind, models in kinds.items() if kind.value == dataset)
    names: dict[str, Any] = next(
        (models for kind, models in of_dataset.items() if kind.value == threat_model), {}
    )
    if name not in names:
        raise unknown(f"RobustBench model for {dataset} and {threat_model}", name, names)
    path = folder / dataset / threat_model / f"{name}.pt"
    parts = names[name]["gdrive_id"]
    return [Path(f"{path}_m{i}.pt") for i in range(len(parts))] if isinstance(parts, list) else [path]


def _require_weights(name: str, files: list[Path]) -> None:
    for path in files:
        if not path.is_file():
            raise UserError(
                f"RobustBench's {name} has no weights file {path}: run robust-interp robustbench download "
                f"--models {name}, or set ${MODEL_DIR} to another folder"
            )
    _refuse_mistaken(files)


def _refuse_mistaken(files: list[Path]) -> None:
    """Raise a UserError if a file is not weights, such as a web page of Google Drive saved by RobustBench."""
    for path in filter(Path.is_file, files):
        if found := mistaken_for_weights(path):
            raise UserError(f"{path} {found}")
