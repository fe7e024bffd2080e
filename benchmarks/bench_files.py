"""Memory and speed of measuring image files: resident memory, and images a second.

    python benchmarks/bench_files.py --images 50000

Writes a few JPEG files of 224 x 224 pixels, links them to as many names as asked for, in one folder a class,
and measures a network of one layer on all of them. The largest resident memory of this process
and its workers is what Linux says.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from robust_interp import evaluate

DISTINCT, CLASSES = 32, 100
CFG = {
    "input_size": (3, 224, 224),
    "crop_pct": 1.0,
    "interpolation": "bicubic",
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
}


class Trivial(nn.Module):
    """One convolution with a large stride: what is timed is the way from the file to the device."""

    pretrained_cfg = CFG

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, CLASSES, 32, 32)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(images).mean((2, 3))


def write(root: Path, images: int) -> None:
    """Hard links to a few smooth random images, sorted by class."""
    rng = np.random.default_rng(0)
    (root / "distinct").mkdir()
    for at in range(DISTINCT):
        small = Image.fromarray(rng.integers(0, 256, (28, 28, 3), dtype=np.uint8))
        small.resize((224, 224), Image.Resampling.BICUBIC).save(root / "distinct" / f"{at}.jpg", quality=90)
    for at in range(images):
        folder = root / "val" / f"{at % CLASSES:03}"
        folder.mkdir(parents=True, exist_ok=True)
        os.link(root / "distinct" / f"{at % DISTINCT}.jpg", folder / f"{at:06}.jpg")


def resident(pid: int) -> tuple[int, int]:
    """Resident bytes of a process and its children: all pages, and with shared ones by their share."""
    rss = pss = 0
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in [str(pid), *children]:
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        sizes = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
        rss, pss = rss + 1024 * int(sizes["Rss"]), pss + 1024 * int(sizes["Pss"])
    return rss, pss


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--attacks", default="none")
    arguments = parser.parse_args()
    largest, done = [0, 0], threading.Event()

    def watch() -> None:
        while not done.wait(2):
            largest[:] = map(max, largest, resident(os.getpid()))
            print(f"\rat most {largest[1] / 2**30:.2f} GiB so far", end="", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as place:
        write(Path(place), arguments.images)
        torch.manual_seed(0)
        before = resident(os.getpid())[1]
        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        began = time.perf_counter()
        evaluate(
            Trivial(),
            f"folder:{place}/val",
            n="all",
            attacks=arguments.attacks,
            eps=(1 / 255,),
            corruptions="none",
            decode_workers=arguments.workers,
            out=Path(place) / "results",
        )
        seconds = time.perf_counter() - began
        done.set()
        thread.join()
    gib = 2**30
    whole, shared = (size / gib for size in largest)
    alone = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / gib
    print(f"{arguments.images} images in {seconds:.0f} s, {arguments.images / seconds:.0f} a second")
    print(f"resident at most {shared:.2f} GiB with workers, shared pages once; before {before / gib:.2f}")
    print(f"({whole:.2f} GiB if each process counts its shared pages; {alone:.2f} GiB this process alone)")


if __name__ == "__main__":
    main()
