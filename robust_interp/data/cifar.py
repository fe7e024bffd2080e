"""CIFAR-10 and CIFAR-100 in torchvision's folder layout.

torchvision's own classes read them, and check the MD5 of the files before unpickling.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.data.dataset import DATASETS, Arrays, DatasetType, data_root
from robust_interp.data.sources import download_source, is_source


def _load_cifar(class_name: str) -> Callable[[str, Path], Arrays]:
    def read(split: str, root: Path) -> Arrays:
        files = _torchvision_class(class_name)
        try:
            data = files(root, train=split == "train", download=False)
        except RuntimeError as error:
            raise UserError(missing_data(class_name, root)) from error
        return data.data.transpose(0, 3, 1, 2), np.array(data.targets)

    return read


def _torchvision_class(class_name: str) -> Any:
    import torchvision

    return getattr(torchvision.datasets, class_name)


def missing_data(class_name: str, root: Path) -> str:
    """Return a message that says why a torchvision data set, such as CIFAR10, cannot be read, and what to do.

    Args:
        class_name: Name of the torchvision class.
        root: The data folder.
    """
    folder = root / _torchvision_class(class_name).base_folder
    state = "is damaged (wrong MD5)" if folder.exists() else "does not exist"
    name = class_name.lower()
    return (
        f"{name}: {folder} {state}; put the official Python version there, choose another folder with "
        f"--data-dir or $ROBUST_INTERP_DATA, or run: robust-interp data {name} --download"
    )


def download(name: str, data_dir: str | os.PathLike | None = None) -> None:
    """Download a registered data set with torchvision, or ``hf:NAME``. Does nothing for digits.

    Args:
        name: Name of a registered data set, or a source.
        data_dir: The data folder, see `data_root`; it is created if it does not exist.

    Raises:
        UserError: if the download fails, the files are not the official ones, or there is neither a data
            folder nor a home folder.
    """
    if is_source(name):
        download_source(name)
        return
    class_name = DATASETS[name].torchvision_class
    if class_name is None:
        return
    root = data_root(data_dir)
    try:
        root.mkdir(parents=True, exist_ok=True)
        _torchvision_class(class_name)(root, download=True)
    except (OSError, RuntimeError) as error:
        mend = "where there is no network, unpack its official archive there"
        raise UserError(f"cannot download {name} into {root}: {error}; {mend}") from error


# Class names of the official archives, in the order of the labels.
_OF_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_OF_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table
tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman
worm
"""

for _name, _classes, _mean, _std in (
    ("cifar10", 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ("cifar100", 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
):
    DATASETS.add(
        _name,
        DatasetType(
            name=_name,
            load=_load_cifar(_name.upper()),
            classes=_classes,
            shape=(3, 32, 32),
            mean=_mean,
            std=_std,
            eps_255=(1, 2, 4),
            attack_defaults={},
            default_n=1000,
            crop_padding=4,
            flip=True,
            torchvision_class=_name.upper(),
            corruption_archive=f"CIFAR-{_classes}-C",
            class_names=tuple((_OF_CIFAR10 if _classes == 10 else _OF_CIFAR100).split()),
        ),
    )
