"""What the author of a plug-in writes with: `attack`, `corruption`, `dataset`; `load` registers a file."""

from robust_interp.plugins.declare import REGISTRIES, OfEps, attack, corruption, dataset, load

__all__ = ["REGISTRIES", "OfEps", "attack", "corruption", "dataset", "load"]
