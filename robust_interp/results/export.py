"""A table as text: CSV, Markdown, LaTeX, JSON. The same rows give the same bytes."""

from __future__ import annotations

import json
import math

import pandas as pd

from robust_interp.corruptions import MEANS

TEXT_COLUMNS = ["model", "recipe", "lambda_init", "protocol", "audit", "corruption_source", "source"]
MCE_COLUMNS = ("mce_abs", "mce_rel(", "relative_mce(")  # how they begin; they have no deviation beside them
# What names a line to a reader, and what of it only where the lines differ in it.
HEAD_COLUMNS = [
    "rank",
    "model",
    "recipe",
    "lambda_init",
    "seeds",
    "members",
    "n_examples",
    "protocol",
    "source",
]
TAIL_COLUMNS = ["strong_n", "audit"]  # after the measured ones, and only where a line has them
SHOWN_IF_TELLING = {"lambda_init", "n_examples", "protocol", "source"}

_SPELLED = {"params_m": ".3f", "p": ".3g", "p_mid": ".3g", "p_holm": ".3g"}
_LATEX = {"\\": r"\textbackslash{}", "±": r"$\pm$ ", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {special: f"\\{special}" for special in "_%&#${}"}


def to_csv(frame: pd.DataFrame) -> str:
    """Percentages with two decimals, params_m with three; the same rows give the same bytes."""
    return _texts(frame).to_csv(index=False, lineterminator="\n")


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
        if not (column in _SPELLED or pd.api.types.is_numeric_dtype(frame[column])):
            continue
        number = int if frame[column].dtype.kind in "iu" else float
        texts[column] = pd.Series([number(text) if text else None for text in texts[column]], dtype=object)
    return json.dumps(texts.to_dict("records"), indent=1, ensure_ascii=False) + "\n"


def to_latex(frame: pd.DataFrame) -> str:
    r"""A table for LaTeX's booktabs package: what the terminal shows, each deviation beside its mean."""
    head, measured = in_short(frame)
    columns = head | measured
    align = "".join("l" if name in TEXT_COLUMNS else "r" for name in columns)
    rows = [" & ".join(map(_latex, row)) + r" \\" for row in zip(*columns.values(), strict=True)]
    names = " & ".join(map(_latex, columns)) + r" \\"
    begin, end = rf"\begin{{tabular}}{{{align}}}", r"\end{tabular}"
    return "\n".join([begin, r"\toprule", names, r"\midrule", *rows, r"\bottomrule", end]) + "\n"


FORMATS = {"csv": to_csv, "markdown": to_markdown, "latex": to_latex, "json": to_json}


def _texts(frame: pd.DataFrame) -> pd.DataFrame:
    """The table as it is written: numbers rounded, what is not there empty."""
    shown = {}
    for column in frame:
        spec = _SPELLED.get(column, ".2f" if frame[column].dtype.kind == "f" else "")
        shown[column] = ["" if pd.isna(value) else format(value, spec) for value in frame[column]]
    return pd.DataFrame(shown, dtype=object)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in text)


def in_short(board: pd.DataFrame) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """A leaderboard for a reader: the texts of what names a line, and of its numbers with their deviation.

    What all lines share is left out.
    """
    alike = board.groupby(["model", "recipe", "members"])["lambda_init"]
    telling = {name for name in SHOWN_IF_TELLING if board[name].nunique() > 1}
    if not (alike.nunique() > 1).any():
        telling.discard("lambda_init")  # the architecture says it already
    names = [name for name in HEAD_COLUMNS if name in telling or name not in SHOWN_IF_TELLING]
    head = {name: ["" if pd.isna(value) else str(value) for value in board[name]] for name in names}
    return head, numbers_in_short(board)


def numbers_in_short(board: pd.DataFrame) -> dict[str, list[str]]:
    """Texts of each measured column, mean ± deviation, and of mCE columns; of a group only the mean."""
    whole = [column for column in board if f"{column}_std" in board]
    parts = {name for group, names in MEANS.items() if group in whole for name in names}
    numbers = {
        name: [_with_std(*pair) for pair in zip(board[name], board[f"{name}_std"], strict=True)]
        for name in whole
        if name not in parts
    }
    singles = [column for column in board if column.startswith(MCE_COLUMNS)]
    singles += [name for name in ("agreement", "improvement") if name in board and board[name].notna().any()]
    numbers |= {name: [_with_std(value, math.nan) for value in board[name]] for name in singles}
    tail = [name for name in TAIL_COLUMNS if name in board]
    return numbers | {name: ["" if pd.isna(value) else str(value) for value in board[name]] for name in tail}


def _with_std(mean: float, std: float) -> str:
    if pd.isna(mean):
        return ""
    return f"{mean:.1f}" if pd.isna(std) else f"{mean:.1f} ±{std:.1f}"
