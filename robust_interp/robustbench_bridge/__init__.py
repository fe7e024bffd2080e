"""Access to RobustBench 1.1.1, whose bugs are patched at run time.

`robustbench()` patches the package inside a ``with`` block; no installed file is changed. The patches:

=============================================  ==========================================================
problem in RobustBench                         inside the block
=============================================  ==========================================================
torchattacks' wheel contains a stub of it      error that says what to install
imports pkg_resources, gone from setuptools    replaced by a module with the one function that is used
imports autoattack; pyautoattack is installed  pyautoattack under that name, with adapted arguments
`aa_state_path`: flags are averaged as bool    as float; resuming, which pyautoattack lacks, is an error
CIFAR-C loaders lack the argument `prepr`      called without it
mCE divides by AlexNet's row (for ImageNet)    mean error for CIFAR (RobustBench reports it as mCE)
downloads missing files without being asked    error that says what is missing, unless `download=True`
=============================================  ==========================================================

`load` returns a model of RobustBench's zoo from local weights.
"""

from robust_interp.robustbench_bridge.bridge import (
    load,
    published_clean,
    robustbench,
    sha256,
    weights,
)

__all__ = ["load", "published_clean", "robustbench", "sha256", "weights"]
