"""The columns of the store's tables, and the digests that detect damaged rows.

The digest of a row covers its table, its key and all values, so that a flipped bit and an exchanged row are
both detected. Rows of older stores, which have no digests, are only checked for a valid form.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np

from robust_interp.core.json_values import Form, check, is_count, is_number, is_text, loads, or_null
from robust_interp.store.cells import Plan
from robust_interp.store.integers import unpacked, unpacked_labels
from robust_interp.store.outcome import AGREE, DISAGREE, INHERITED, NOT_FINITE, ZERO_GRADIENT

COLUMNS = {
    "chunks": ("cell", "start", "count", "predictions", "flags", "deltas", "seconds", "device"),
    "labels": ("dataset", "labels"),
    "runs": ("plan", "dataset", "finished", "text"),
    "audits": ("victim", "dataset", "verdict", "text"),
    "counts": ("name", "rows"),
    "pixels": ("dataset", "start", "hashes"),
}

KEYS = {
    "chunks": 2,
    "labels": 1,
    "runs": 1,
    "audits": 2,
    "counts": 1,
    "pixels": 2,
}  # number of leading columns that form the key

COUNTED = ("labels", "runs", "audits")  # tables whose number of rows is kept in the table `counts`

_FLAGS = ZERO_GRADIENT | NOT_FINITE | AGREE | DISAGREE | INHERITED


def seal(table: str, values: Sequence) -> bytes:
    """Return the digest (16 bytes) of a row: of its table, and its values in the order of COLUMNS."""
    # Values of type bytes follow the head, which holds their lengths. ascii() is the same in every Python.
    head: list[object] = []
    blobs = [b""]
    for value in values:
        if type(value) is bytes:
            blobs.append(value)
            head.append((len(value),))
        else:
            head.append(value)
    blobs[0] = ascii((table, head)).encode("ascii")
    return hashlib.blake2b(b"".join(blobs), digest_size=16).digest()


def is_sound(table: str, row: Sequence, sealed: bool) -> bool:
    """Return whether a row is undamaged.

    Args:
        table: Name of the table.
        row: The values in the order of COLUMNS, then the digest.
        sealed: Whether the store has digests; without them the form of the row is checked.
    """
    values = row[:-1]
    if not sealed:
        return has_form(table, values)
    # Anybody can compute a digest, so the form is checked, too.
    return row[-1] == seal(table, values) and _fits(table, values)


def read_plan(key: str, dataset: str, text: str) -> Plan | None:
    """Return the plan of a row of `runs`; None if this version cannot read it, or gets another key."""
    try:
        plan = Plan.from_json(text)
        return plan if (plan.key, plan.dataset) == (key, dataset) else None
    except (TypeError, ValueError, LookupError, AttributeError):
        return None


def has_form(table: str, values: Sequence) -> bool:
    """Return whether a row without a digest has a valid form: types, lengths, ranges, and key of the plan."""
    if not _fits(table, values):
        return False
    if table == "chunks":
        return not (np.frombuffer(values[4], np.uint8) & ~np.uint8(_FLAGS)).any()
    if table == "runs":
        key, dataset, _, text = values
        return read_plan(key, dataset, text) is not None
    return True


def _fits(table: str, values: Sequence) -> bool:
    """Return whether a row can be used: types, lengths and ranges."""
    try:
        return _FORMS[table](*values)
    except (TypeError, ValueError, LookupError, AttributeError):
        return False


def _is_chunk(
    cell: str,
    start: int,
    count: int,
    predictions: bytes,
    flags: bytes,
    deltas: bytes | None,
    seconds: float,
    device: str,
) -> bool:
    return (
        _are(str, cell, device)
        and _are(int, start, count)
        and _are(bytes, predictions, flags)
        and isinstance(deltas, bytes | None)
        and isinstance(seconds, float)
        and start >= 0
        and 0 < count == len(flags)
        and (deltas is None or len(deltas) == 4 * count)
        and int(unpacked(predictions, count).min()) >= -1
        and math.isfinite(seconds)
        and seconds >= 0
    )


def _are_labels(dataset: str, labels: bytes) -> bool:
    return _are(str, dataset) and _are(bytes, labels) and int(unpacked_labels(labels).min()) >= 0


def _is_run(plan: str, dataset: str, finished: int, text: str) -> bool:
    return _are(str, plan, dataset, text) and _are(int, finished)


def _is_audit(victim: str, dataset: str, verdict: str, text: str) -> bool:
    if not _are(str, victim, dataset, verdict):
        return False
    for line in loads(text):
        check("a line", line, *_AUDIT_LINE)
    return True


def _is_count(name: str, rows: int) -> bool:
    return name in COUNTED and _are(int, rows)


def _is_any_number(value: object) -> bool:
    return isinstance(value, float) or is_number(value)


_AUDIT_LINE: tuple[dict[str, Form], dict[str, Form]] = (
    dict.fromkeys(("dataset", "model", "recipe", "check", "verdict", "detail"), is_text),
    {
        **dict.fromkeys(("train_seed", "members", "n"), or_null(is_count)),
        **dict.fromkeys(("eps_255", "value", "ci_low", "ci_high", "threshold"), or_null(_is_any_number)),
    },
)


def _are_pixels(dataset: str, start: int, hashes: bytes) -> bool:
    return _are(str, dataset) and _are(int, start) and start >= 0 and len(hashes) % 8 == 0 < len(hashes)


def _are(kind: type, *values: object) -> bool:
    return all(isinstance(value, kind) for value in values)


_FORMS: dict[str, Callable[..., bool]] = {
    "chunks": _is_chunk,
    "waiting": _is_chunk,  # chunks that were finished before the chunks ahead of them
    "labels": _are_labels,
    "runs": _is_run,
    "audits": _is_audit,
    "counts": _is_count,
    "pixels": _are_pixels,
}
