"""Tables as CSV text that is safe to open in a spreadsheet: no text in it is taken for a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from robust_interp.core.texts import plain

if TYPE_CHECKING:  # not imported here, since pandas is slow to import
    import pandas as pd

_FORMULA = tuple("=+-@＝＋－＠\t")  # characters that begin a formula in a spreadsheet


def csv_text(frame: pd.DataFrame, float_format: str | None = None) -> str:
    """Return a table as CSV with a header and without its index. Lines end with a newline on every system.

    Texts that a spreadsheet would take for a formula get a leading apostrophe. Numbers are not changed.
    """
    texts = {at for at, kind in enumerate(frame.dtypes) if kind.kind == "O"}
    safe = frame.copy(deep=False)
    for at in texts:
        safe.isetitem(at, frame.iloc[:, at].map(escape_csv_value).array)
    return safe.set_axis([escape_csv_value(name) for name in frame], axis=1).to_csv(
        index=False, float_format=float_format, lineterminator="\n"
    )


def escape_csv_value(value: Any) -> Any:
    """Return a value for a CSV file: control characters are escaped, formulas get a leading apostrophe."""
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
