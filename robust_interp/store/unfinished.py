"""The plans of runs that have begun and not finished, each in a file beside the store."""

from __future__ import annotations

from pathlib import Path

from robust_interp.core.errors import UserError
from robust_interp.core.files import write_text
from robust_interp.store.cells import Plan
from robust_interp.store.database import Store

_FORM = "unfinished-{}.json"  # with the beginning of the plan's key


def begin(plan: Plan, store: Store) -> None:
    """Write the plan of a run that begins, unless the store is in memory.

    Raises:
        UserError: if it cannot be written.
    """
    if isinstance(store.path, Path):
        write_text(_path(store.path.parent, plan), plan.to_json())


def end(plan: Plan, store: Store) -> None:
    """Remove the file of a run that has finished."""
    if isinstance(store.path, Path):
        _path(store.path.parent, plan).unlink(missing_ok=True)


def plans(folder: Path) -> list[Plan]:
    """Return the plans of the unfinished runs in a results folder, oldest first.

    Raises:
        UserError: if a file cannot be read or is not the plan that its name says.
    """
    paths = sorted(folder.glob(_FORM.format("*")), key=lambda path: path.stat().st_mtime)
    return [_read(path) for path in paths]


def _path(folder: Path, plan: Plan) -> Path:
    return folder / _FORM.format(plan.key[:16])


def _read(path: Path) -> Plan:
    try:
        plan = Plan.from_json(path.read_text(encoding="utf-8"))
        if path == _path(path.parent, plan):
            return plan
    except (UserError, OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    raise UserError(f"{path} is damaged: remove it; the same robust-interp bench command writes it again")
