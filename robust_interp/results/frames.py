"""Tables with declared columns, made from rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
from pandas.arrays import IntegerArray

from robust_interp.results.columns import Column, integers


def frame_of(rows: Sequence[Mapping], columns: Sequence[Column]) -> pd.DataFrame:
    """Return rows as a table with these columns, in their order. Values that a row lacks are missing."""
    frame = pd.DataFrame(rows).reindex(columns=[column.name for column in columns])
    exact = {name: whole_numbers(row.get(name) for row in rows) for name in integers(columns)}
    return frame.assign(**exact)


def whole_numbers(values: Iterable[int | None]) -> IntegerArray:
    """Return values as a column of integers, where None is missing.

    pandas itself makes such values floats, which round seeds above 2**53.
    """
    return pd.array(list(values), dtype="Int64")
