"""robust-interp ls"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from robust_interp.cli.options import Commands, add_command, add_plugin
from robust_interp.cli.terminal import say, warn

if TYPE_CHECKING:
    from robust_interp.attacks import AttackType
    from robust_interp.core.registry import Registry

KINDS = ("models", "attacks", "corruptions", "datasets")


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "ls",
        "list models, attacks, corruptions and datasets, and the origin of each",
        "robust-interp ls attacks",
        run,
    )
    parser.add_argument(
        "kind",
        nargs="?",
        choices=KINDS,
        help="one of the four kinds; attacks and corruptions come with parameters and papers; of models the "
        "architectures, beside which there are timm:NAME, timm:local-dir:FOLDER, timm:hf-hub:NAME, hf:NAME, "
        "robustbench:NAME and package.module:factory (default: all four)",
    )
    parser.add_argument(
        "--check", action="store_true", help="also import the installed plug-ins and report broken ones"
    )
    add_plugin(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp import zoo
    from robust_interp.plugins import REGISTRIES

    broken = 0
    for kind in KINDS if arguments.kind is None else (arguments.kind,):
        registry = REGISTRIES[kind]
        look_up = zoo.is_model if kind == "models" else registry.__getitem__
        problems = registry.problems(look_up if arguments.check else None)
        lines = {name: registry.origins(name)[0].name for name in registry if name not in problems}
        if kind == "models":
            lines = _trained(zoo.checkpoints()) | lines
        say(f"{kind}:")
        describe = DESCRIBED.get(kind) if kind == arguments.kind else None
        for name, origin in lines.items():
            say(f"  {name:<23} {origin}")
            for line in describe(registry, name) if describe else ():
                say(f"    {line}")
        for trouble in problems.values():
            warn(f"warning: {trouble}")
        broken += len(problems)
    return 1 if arguments.check and broken else 0


def _attack(registry: Registry, name: str) -> list[str]:
    """Describe an attack: norm, summary and paper, then its parameters.

    Return no line for a plug-in that is not imported.
    """
    if (kind := registry.get_loaded(name)) is None:
        return []
    norm = "Linf or L2" if "norm" in kind.defaults else kind.norm
    source = f" ({kind.source})" if kind.source else ""
    what = ", ".join(part for part in (norm, kind.about) if part)
    return [what + source, ", ".join(_parameter(kind, *pair) for pair in kind.takes.items())]


def _parameter(kind: AttackType, name: str, default: object) -> str:
    """Format a parameter with its default and the defaults of data sets that differ."""
    if name == "eps":
        given = "optional" if kind.minimal else "by --eps" if kind.norm == "Linf" else "needed in the spec"
        return f"eps ({given})"
    if default is None:
        return f"{name} (optional)"
    others = "".join(f" ({dataset}: {_value(kind, name, value)})" for dataset, value in _elsewhere(name))
    return f"{name}={_value(kind, name, default)}{others}"


def _value(kind: AttackType, name: str, value: object) -> str:
    """Format a value as it is written in a spec."""
    from robust_interp.attacks.parse import exact_255
    from robust_interp.core.specs import OfEps

    if isinstance(value, OfEps):
        return f"eps/{1 / value.factor:g}"
    if name == "alpha" and kind.norm == "Linf" and isinstance(value, int | float):
        return f"{exact_255(value)}/255"
    return str(value)


def _elsewhere(name: str) -> Iterator[tuple[str, object]]:
    """Yield each data set with its own default of a parameter, and that default.

    Plug-ins that are not imported are skipped.
    """
    from robust_interp.data import DATASETS

    for dataset in DATASETS:
        kind = DATASETS.get_loaded(dataset)
        if kind and name in kind.attack_defaults:
            yield dataset, kind.attack_defaults[name]


def _corruption(registry: Registry, name: str) -> list[str]:
    """Describe a corruption: summary and paper, then its severity parameter."""
    from robust_interp.core.registry import BUILT_IN, first_line
    from robust_interp.corruptions.names import SEVERITIES, SOURCE

    if (entry := registry.get_loaded(name)) is None:
        return []
    source = f" ({SOURCE})" if registry.origins(name) == [BUILT_IN] else ""
    severity = f"severity {SEVERITIES[0]} to {SEVERITIES[-1]} (all unless given)"
    return [line for line in (first_line(entry) + source, severity) if line]


DESCRIBED = {"attacks": _attack, "corruptions": _corruption}


def _trained(checkpoints: list) -> dict[str, str]:
    """Return the architectures that have checkpoints, with a text that lists their data sets."""
    datasets: dict[str, dict[str, None]] = {}
    for checkpoint in checkpoints:
        datasets.setdefault(checkpoint.architecture, {})[checkpoint.dataset] = None
    return {name: f"checkpoints for {', '.join(found)}" for name, found in datasets.items()}
