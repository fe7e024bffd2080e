"""Images a second of each generated corruption and severity, on one CPU, and what a whole set would take.

``--size 32`` takes images of CIFAR-10, any other size takes them enlarged to it. Rates are measured
on n images; the minutes of the whole set are extrapolated from them.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from PIL import Image

from robust_interp import data
from robust_interp.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from robust_interp.corruptions.severities import constants_of
from robust_interp.corruptions.table import obstacle

CIFAR = 32  # pixels


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="corruptions (default: all)")
    parser.add_argument("--n", type=int, default=200, help="images of each (default: 200)")
    parser.add_argument("--size", type=int, default=CIFAR, help="of the images, in pixels (default: 32)")
    parser.add_argument("--set", type=int, default=10_000, help="images of the whole set (default: 10000)")
    parser.add_argument("--cpus", type=int, default=2, help="that share the work (default: 2)")
    parser.add_argument("--data-dir", metavar="FOLDER")
    arguments = parser.parse_args()
    clean = images(arguments.n, arguments.size, arguments.data_dir)
    print(f"{arguments.n} images of {arguments.size} pixels, constants of {constants_of(clean.shape)}")
    print(f"{'images/s at severity':20}" + "".join(f"{severity:8}" for severity in SEVERITIES))
    seconds = 0.0
    for name in arguments.names or CORRUPTIONS:
        if reason := obstacle(name, clean.shape[1:]):
            print(f"{name:20} left out: {reason}")
            continue
        rates = [rate(name, severity, clean) for severity in SEVERITIES]
        seconds += sum(1 / each for each in rates)
        print(f"{name:20}" + "".join(f"{each:8.0f}" for each in rates), flush=True)
    minutes = seconds * arguments.set / arguments.cpus / 60
    print(
        f"all of them of {arguments.set} images, extrapolated to {arguments.cpus} CPUs: {minutes:.1f} minutes"
    )


def images(n: int, size: int, data_dir: str | None) -> np.ndarray:
    """CIFAR-10's first test images (n, 3, size, size), uint8, enlarged by cubic interpolation."""
    cifar = data.load("cifar10", "test", data_dir).rows(0, n)
    if size == CIFAR:
        return cifar
    pictures = [Image.fromarray(image.transpose(1, 2, 0)) for image in cifar]
    enlarged = [np.asarray(picture.resize((size, size), Image.Resampling.BICUBIC)) for picture in pictures]
    return np.stack(enlarged).transpose(0, 3, 1, 2)


def rate(name: str, severity: int, clean: np.ndarray) -> float:
    """Images a second of CPU time: what else the machine does is not counted."""
    corrupt(clean[:1], name, severity, [0], seed=0)  # the first one has things to set up
    began = time.process_time()
    corrupt(clean, name, severity, range(len(clean)), seed=0)
    return len(clean) / (time.process_time() - began)


if __name__ == "__main__":
    main()
