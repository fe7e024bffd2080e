"""RobustBench 1.1.1 as it can be used: what is broken in it is mended here, in memory, and nowhere else.

`robustbench()` gives the package for the length of a ``with`` block; no installed file is changed. What it
mends, and how:

=============================================  ==========================================================
what is broken                                 inside the block
=============================================  ==========================================================
torchattacks' wheel holds a stub of that name  refused, with what to install
imports pkg_resources, gone from setuptools    a stand-in with the one function it uses
imports autoattack; pyautoattack is installed  pyautoattack under that name, taking the arguments given
`aa_state_path`: flags are averaged as bool    as float; resuming, which pyautoattack cannot, is refused
CIFAR-C loaders lack the argument `prepr`      called without it
mCE divides by AlexNet, an ImageNet row        for CIFAR the mean error (what is reported as mCE there)
downloads what is missing, unasked             refused, saying what is missing; `download=True` allows it
=============================================  ==========================================================

`load` gives a model of RobustBench's zoo, from weights that are there.
"""

from robust_interp.robustbench_bridge.bridge import (
    MODEL_DIR,
    PUBLISHED,
    load,
    published_clean,
    robustbench,
    sha256,
    weights,
)

__all__ = ["MODEL_DIR", "PUBLISHED", "load", "published_clean", "robustbench", "sha256", "weights"]
