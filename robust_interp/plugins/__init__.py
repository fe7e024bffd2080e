"""Decorators for plug-ins: `attack`, `corruption` and `dataset`. `load` registers the plug-ins of a file."""

from robust_interp.core.specs import OfEps
from robust_interp.plugins.declare import attack, corruption, dataset
from robust_interp.plugins.loading import REGISTRIES, load, load_same, loaded

__all__ = ["REGISTRIES", "OfEps", "attack", "corruption", "dataset", "load", "load_same", "loaded"]
