"""Generate the deterministic corruptions of CIFAR-10's whole test set and compare them with CIFAR-10-C.

Needs CIFAR-10; prints one line a file: its MD5, whether it is the released one's, and the seconds it took.
``--pins FILE`` also writes, per file that agrees, the SHA-256 of the first 100 images of each severity: what
the tests hold the generator to without the whole set. JPEG agrees with libjpeg 9 only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from io import BytesIO
from pathlib import Path

import numpy as np

from robust_interp import corruptions, data
from robust_interp.corruptions.digital import jpeg_library

DETERMINISTIC = [
    "gaussian_blur",
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "saturate",
    "pixelate",
    "jpeg_compression",
]
PINNED = 100  # images


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=DETERMINISTIC, help="corruptions (default: all eight)")
    parser.add_argument("--data-dir", metavar="FOLDER")
    parser.add_argument("--pins", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    dataset = data.load("cifar10", "test", arguments.data_dir)
    print(f"JPEG by {jpeg_library() or 'libjpeg 9'}")
    _report("labels", np.tile(dataset.labels, 5).astype(np.uint8), corruptions.RELEASED_LABELS_MD5, 0)
    pins = {}
    for name in arguments.names:
        began = time.perf_counter()
        stacked = [
            corruptions.corrupt(dataset.images, name, severity, range(len(dataset)), seed=0)
            for severity in corruptions.SEVERITIES
        ]
        rows = np.concatenate(stacked).transpose(0, 2, 3, 1)  # channels last, severities stacked
        if _report(name, rows, corruptions.RELEASED_MD5[name], time.perf_counter() - began):
            pins[name] = [hashlib.sha256(part[:PINNED].tobytes()).hexdigest() for part in stacked]
    if arguments.pins:
        arguments.pins.write_text(json.dumps(pins, indent=1) + "\n")


def _report(name: str, array: np.ndarray, released: str, seconds: float) -> bool:
    file = BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(array), version=(1, 0))
    md5 = hashlib.md5(file.getbuffer()).hexdigest()
    print(f"{name:18} {md5} {'as released' if md5 == released else 'DIFFERS'} {seconds:7.1f} s", flush=True)
    return md5 == released


if __name__ == "__main__":
    main()
