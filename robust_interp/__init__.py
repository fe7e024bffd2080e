"""robust_interp: adversarial-robustness benchmarking, and the In-ResNet family as timm models.

`import robust_interp` is enough for `timm.create_model("in_resnet110")`, in either import order.
It imports neither torch nor timm: the models are registered as soon as timm is imported, and the
rest of the public API is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from robust_interp.core.import_hook import when_imported

if TYPE_CHECKING:  # for editors and type checkers; at run time see __getattr__
    from robust_interp.benchmark.api import evaluate
    from robust_interp.classifiers.classifier import Classifier
    from robust_interp.classifiers.ensemble import Ensemble
    from robust_interp.core.errors import UserError
    from robust_interp.results.api import leaderboard

__version__ = "0.2.0.dev0"

# Public name -> the module that holds it, imported when the name is first used.
_PUBLIC = {
    "Classifier": "robust_interp.classifiers.classifier",
    "Ensemble": "robust_interp.classifiers.ensemble",
    "UserError": "robust_interp.core.errors",
    "evaluate": "robust_interp.benchmark.api",
    "leaderboard": "robust_interp.results.api",
}

__all__ = ["Classifier", "Ensemble", "UserError", "__version__", "evaluate", "leaderboard"]


def _register_models() -> None:
    importlib.import_module("robust_interp.zoo.pretrained").register()


when_imported("timm", _register_models)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value  # so that the next access skips __getattr__
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
