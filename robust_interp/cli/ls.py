"""robust-interp ls"""

from __future__ import annotations

import argparse
import sys

from robust_interp.cli.options import add_command, add_plugin

KINDS = ("models", "attacks", "corruptions", "datasets")


def add_to(commands) -> None:
    parser = add_command(
        commands,
        "ls",
        "list models, attacks, corruptions and datasets, and where each comes from",
        "robust-interp ls attacks",
        run,
    )
    parser.add_argument("kind", nargs="?", choices=KINDS, help="one of the four (default: all)")
    parser.add_argument(
        "--check", action="store_true", help="import the installed plug-ins, too, and say which are broken"
    )
    add_plugin(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp import zoo
    from robust_interp.plugins import REGISTRIES

    broken = 0
    for kind in KINDS if arguments.kind is None else (arguments.kind,):
        registry = REGISTRIES[kind]
        look_up = zoo.is_model if kind == "models" else registry.__getitem__
        troubles = registry.troubles(look_up if arguments.check else None)
        lines = {name: registry.origins(name)[0].name for name in registry if name not in troubles}
        if kind == "models":
            lines = _trained(zoo.checkpoints()) | lines
        print(f"{kind}:")
        for name, origin in lines.items():
            print(f"  {name:<23} {origin}")
        for trouble in troubles.values():
            print(f"warning: {trouble}", file=sys.stderr)
        broken += len(troubles)
    return 1 if arguments.check and broken else 0


def _trained(checkpoints: list) -> dict[str, str]:
    """The architectures that --models takes without a weights file."""
    datasets: dict[str, dict[str, None]] = {}
    for checkpoint in checkpoints:
        datasets.setdefault(checkpoint.architecture, {})[checkpoint.dataset] = None
    return {name: f"checkpoints for {', '.join(found)}" for name, found in datasets.items()}
