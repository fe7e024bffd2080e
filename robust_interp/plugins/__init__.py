"""For authors of plug-ins: the decorators `attack`, `corruption` and `dataset`; `load` registers a file."""

from robust_interp.plugins.declare import REGISTRIES, OfEps, attack, corruption, dataset, load

__all__ = ["REGISTRIES", "OfEps", "attack", "corruption", "dataset", "load"]
