"""The plans of runs that have begun and not finished, each in a file beside the store."""

from __future__ import annotations

import json
from pathlib import Path

from robust_interp.core.errors import UserError
from robust_interp.core.files import write_text
from robust_interp.core.json_values import loads
from robust_interp.store.cells import Plan
from robust_interp.store.database import Store

_FORM = "unfinished-{}.json"  # with the beginning of the plan's key


def begin(plan: Plan, store: Store) -> None:
    """Write the plan of a run that begins, unless the store is in memory.

    Raises:
        UserError: if it cannot be written.
    """
    if isinstance(store.path, Path):
        begun = json.loads(plan.to_json()) | {"after": store.newest_run()}
        write_text(_path(store.path.parent, plan), json.dumps(begun))


def end(plan: Plan, store: Store) -> None:
    """Remove the file of a run that has finished."""
    if isinstance(store.path, Path):
        _path(store.path.parent, plan).unlink(missing_ok=True)


def plans(folder: Path) -> list[tuple[int, Plan]]:
    """Return the unfinished runs in a results folder: the number of the run finished before, and the plan.

    Raises:
        UserError: if a file cannot be read or is not the plan that its name says.
    """
    found = map(_read, sorted(folder.glob(_FORM.format("*"))))
    return sorted((one for one in found if one), key=lambda one: one[0])


def _path(folder: Path, plan: Plan) -> Path:
    return folder / _FORM.format(plan.key[:16])


def _read(path: Path) -> tuple[int, Plan] | None:
    try:
        text = path.read_text(encoding="utf-8")
        plan = Plan.from_json(text)
        if path == _path(path.parent, plan):
            return int(loads(text).get("after", 0)), plan
    except FileNotFoundError:
        return None  # the run has finished meanwhile
    except (UserError, OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    raise UserError(f"{path} is damaged: remove it; the same robust-interp bench command writes it again")
