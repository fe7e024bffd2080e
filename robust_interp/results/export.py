"""A table as text: CSV, Markdown, LaTeX, JSON. The same rows give the same bytes."""

from __future__ import annotations

import json

import pandas as pd

from robust_interp.results.brief import in_short
from robust_interp.results.columns import FORMS, is_text

_LATEX = {"\\": r"\textbackslash{}", "±": r"$\pm$ ", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {special: f"\\{special}" for special in "_%&#${}"}


def to_csv(frame: pd.DataFrame) -> str:
    """Percentages with two decimals, params_m with three; the same rows give the same bytes."""
    return _texts(frame).to_csv(index=False, lineterminator="\n")


def results_csv(frame: pd.DataFrame) -> str:
    """Tidy results: enough decimals that n x accuracy is a whole number again."""
    return frame.to_csv(index=False, float_format="%.10g", lineterminator="\n")


def to_markdown(frame: pd.DataFrame) -> str:
    """A Markdown table with the same texts as the CSV."""
    texts = _texts(frame)
    rows = [list(texts), ["---"] * len(texts.columns), *texts.values.tolist()]
    return "".join(f"| {' | '.join(map(_markdown, row))} |\n" for row in rows)


def _markdown(text: str) -> str:
    return " ".join(text.replace("|", "&#124;").splitlines())


def to_json(frame: pd.DataFrame) -> str:
    """A list of objects with the numbers of the CSV; what was not measured is null."""
    texts = _texts(frame)
    for column in frame:
        if not (column in FORMS or pd.api.types.is_numeric_dtype(frame[column])):
            continue
        number = int if frame[column].dtype.kind in "iu" else float
        texts[column] = pd.Series([number(text) if text else None for text in texts[column]], dtype=object)
    return json.dumps(texts.to_dict("records"), indent=1, ensure_ascii=False) + "\n"


def to_latex(frame: pd.DataFrame) -> str:
    r"""A table for LaTeX's booktabs package: what the terminal shows, each deviation beside its mean."""
    head, measured = in_short(frame)
    columns = head | measured
    align = "".join("l" if is_text(name) else "r" for name in columns)
    rows = [" & ".join(map(_latex, row)) + r" \\" for row in zip(*columns.values(), strict=True)]
    names = " & ".join(map(_latex, columns)) + r" \\"
    begin, end = rf"\begin{{tabular}}{{{align}}}", r"\end{tabular}"
    return "\n".join([begin, r"\toprule", names, r"\midrule", *rows, r"\bottomrule", end]) + "\n"


FORMATS = {"csv": to_csv, "markdown": to_markdown, "latex": to_latex, "json": to_json}


def _texts(frame: pd.DataFrame) -> pd.DataFrame:
    """The table as it is written: numbers rounded, what is not there empty."""
    shown = {}
    for column in frame:
        spec = FORMS.get(column, ".2f" if frame[column].dtype.kind == "f" else "")
        shown[column] = ["" if pd.isna(value) else format(value, spec) for value in frame[column]]
    return pd.DataFrame(shown, dtype=object)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in text)
