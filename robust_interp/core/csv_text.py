"""Tables as CSV texts that a spreadsheet opens as they are: no name in them is taken for a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from robust_interp.core.texts import plain

if TYPE_CHECKING:  # it is imported by what makes the tables
    import pandas as pd

_FORMULA = tuple("=+-@＝＋－＠\t")  # what a spreadsheet takes for the beginning of one


def csv_text(frame: pd.DataFrame, float_format: str | None = None) -> str:
    """The table with a head and without its index, lines ended by a newline; the same gives the same bytes.

    Texts that a spreadsheet would take for a formula begin with an apostrophe. Numbers are as they are.
    """
    texts = {at for at, kind in enumerate(frame.dtypes) if kind.kind == "O"}
    safe = frame.copy(deep=False)
    for at in texts:
        safe.isetitem(at, frame.iloc[:, at].map(defused).array)
    return safe.set_axis([defused(name) for name in frame], axis=1).to_csv(
        index=False, float_format=float_format, lineterminator="\n"
    )


def defused(value: Any) -> Any:
    """A cell of a CSV file: texts are plain, and none but a number begins as a formula does."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
