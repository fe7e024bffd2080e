"""What the rows of the store are made of, and the digest by which a damaged one is known.

A row's digest covers its table, its key and all that it says, so that neither a flipped bit nor a row in the
place of another can pass for what was written. Stores from before there were digests are judged by form.
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
}  # how many columns name a row

COUNTED = ("labels", "runs", "audits")  # tables of which `counts` says how many rows were ever written

_FLAGS = ZERO_GRADIENT | NOT_FINITE | AGREE | DISAGREE | INHERITED


def seal(table: str, values: Sequence) -> bytes:
    """The digest (16 bytes) of a row: its table, and its values in the order of COLUMNS."""
    # Bytes follow, each with its length ahead. What ascii() writes is alike in every Python.
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
    """Whether a row says what was written.

    Args:
        row: Its values in the order of COLUMNS, then its digest.
        sealed: Whether the store has digests; one that has none is judged by its form.
    """
    values = row[:-1]
    if not sealed:
        return has_form(table, values)
    # A digest is no secret: others may have sealed anything.
    return row[-1] == seal(table, values) and _fits(table, values)


def read_plan(key: str, dataset: str, text: str) -> Plan | None:
    """The plan that a row of `runs` tells; None if this version does not read it, or reads another one."""
    try:
        plan = Plan.from_json(text)
        return plan if (plan.key, plan.dataset) == (key, dataset) else None
    except (TypeError, ValueError, LookupError, AttributeError):
        return None


def has_form(table: str, values: Sequence) -> bool:
    """Whether a row without a digest could have been written: types, lengths, ranges, what its key says."""
    if not _fits(table, values):
        return False
    if table == "chunks":
        return not (np.frombuffer(values[4], np.uint8) & ~np.uint8(_FLAGS)).any()
    if table == "runs":
        key, dataset, _, text = values
        return read_plan(key, dataset, text) is not None
    return True


def _fits(table: str, values: Sequence) -> bool:
    """Whether types and lengths are such that a row can be used."""
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
    return (  # spelt out: a table of ten million predictions asks 40,000 times
        isinstance(cell, str)
        and isinstance(device, str)
        and isinstance(start, int)
        and isinstance(count, int)
        and isinstance(predictions, bytes)
        and isinstance(flags, bytes)
        and (deltas is None or isinstance(deltas, bytes))
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
    "waiting": _is_chunk,  # what comes before those ahead of it
    "labels": _are_labels,
    "runs": _is_run,
    "audits": _is_audit,
    "counts": _is_count,
    "pixels": _are_pixels,
}
