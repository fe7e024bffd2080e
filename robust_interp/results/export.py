"""Tables as text: CSV, Markdown, LaTeX, JSON. The same rows give the same bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence

import pandas as pd

from robust_interp.core.csv_text import csv_text
from robust_interp.core.texts import one_line, plain_json
from robust_interp.results.columns import DECIMALS, FORMS, is_text

_LATEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "–": "--",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
PAGE, SPACE = 90, 2  # characters: width of a line of 6.5 inches at 10 pt, and distance of two columns
_LATEX |= {special: f"\\{special}" for special in "_%&#${}"}
_LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
_LATEX |= {"[": "{[}", "*": "{*}"}  # else LaTeX reads them as an argument of a preceding \\
_MARKDOWN = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"}
_MARKDOWN |= {special: f"\\{special}" for special in "\\`*[]~"}


def to_csv(frame: pd.DataFrame) -> str:
    """Return a table as CSV: percentages with two to six decimals, params_m with three."""
    return csv_text(_texts(frame, _exact))


def results_csv(frame: pd.DataFrame) -> str:
    """Return results.csv, with enough decimals to recover the whole number n x accuracy."""
    return csv_text(frame, "%.10g")


def to_markdown(frame: pd.DataFrame) -> str:
    """Return a Markdown table with the texts of the CSV, percentages with two decimals."""
    return markdown_of(_columns(frame))


def markdown_of(columns: Mapping[str, Sequence[str]], bold: Collection[str] = (), note: str = "") -> str:
    """Return a Markdown table.

    Args:
        columns: Texts of the cells, by column name.
        bold: Names of the columns with a bold heading.
        note: Text of a paragraph below the table; empty for none.
    """
    head = [f"**{_markdown(name)}**" if name in bold else _markdown(name) for name in columns]
    rows = [map(_markdown, row) for row in zip(*columns.values(), strict=True)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rows])
    return f"{table}\n{_markdown(note)}\n" if note else table


def _markdown(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    escaped = "".join(_MARKDOWN.get(char, char) for char in one_line(text))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", escaped)  # within a word it needs no escape


def to_json(frame: pd.DataFrame) -> str:
    """Return a JSON list with one object per row. Numbers are those of the CSV; missing values are null."""
    texts = _texts(frame, _exact)
    for column in frame:
        if not (column in FORMS or pd.api.types.is_numeric_dtype(frame[column])):
            continue
        number = int if frame[column].dtype.kind in "iu" else float
        texts[column] = pd.Series([number(text) if text else None for text in texts[column]], dtype=object)
    return plain_json(json.dumps(texts.to_dict("records"), indent=1, ensure_ascii=False)) + "\n"


def to_latex(frame: pd.DataFrame) -> str:
    """Return a table for LaTeX's booktabs package, with the texts of the Markdown table."""
    return latex_of(_columns(frame))


def latex_of(columns: Mapping[str, Sequence[str]], bold: Collection[str] = (), note: str = "") -> str:
    r"""Return a table for LaTeX's booktabs package. One that is wider than a page is scaled with graphicx.

    Args:
        columns: Texts of the cells, by column name.
        bold: Names of the columns with a bold heading.
        note: Text of a paragraph below the table; empty for none.
    """
    align = "".join("l" if is_text(name) else "r" for name in columns)
    head = [rf"\textbf{{{_latex(name)}}}" if name in bold else _latex(name) for name in columns]
    rows = [map(_latex, row) for row in zip(*columns.values(), strict=True)]
    lines = [" & ".join(row) + r" \\" for row in [head, *rows]]
    table = [rf"\begin{{tabular}}{{{align}}}", r"\toprule", lines[0], r"\midrule", *lines[1:]]
    table += [r"\bottomrule", r"\end{tabular}"]
    if sum(max(map(len, [name, *texts])) + SPACE for name, texts in columns.items()) > PAGE:
        table = [r"\resizebox{\linewidth}{!}{%", *table[:-1], table[-1] + "}"]
    table += [rf"\par\smallskip{{\footnotesize {_latex(note)}\par}}"] if note else []
    return "\n".join(table) + "\n"


FORMATS = {"csv": to_csv, "markdown": to_markdown, "latex": to_latex, "json": to_json}
FOR_READERS = {"markdown": markdown_of, "latex": latex_of}  # for columns that are texts already


def _columns(frame: pd.DataFrame) -> dict[str, list[str]]:
    texts = _texts(frame, _short)
    return {str(name): list(texts[name]) for name in texts}


def _texts(frame: pd.DataFrame, percentage: Callable[[float], str]) -> pd.DataFrame:
    """Return the table as texts: missing values are empty, `percentage` writes numbers that have no form."""
    shown = {}
    for column in map(str, frame):
        other = percentage if frame[column].dtype.kind == "f" else str
        text = f"{{:{FORMS[column]}}}".format if column in FORMS else other
        shown[column] = ["" if pd.isna(value) else text(value) for value in frame[column]]
    return pd.DataFrame(shown, dtype=object)


def _exact(value: float) -> str:
    """Return a number for a program: two decimals, and up to six where it has more."""
    return re.sub(rf"0{{1,{DECIMALS - 2}}}$", "", f"{value:.{DECIMALS}f}")


def _short(value: float) -> str:
    return f"{value:.2f}"


def _latex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in one_line(text))
