import pytest

from robust_interp.core.csv_text import csv_text, escape_csv_value
from robust_interp.core.errors import UserError
from robust_interp.core.json_values import DEEPEST, is_count, is_number, loads
from robust_interp.core.texts import first_line_of, plain, quoted, reason_of


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("λ ± 1\n\tx", "λ ± 1\n\tx"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("a\rb\x9b2J\x7f", r"a\rb\x9b2J\x7f"),
        ("a\u202eb\u2066", r"a\u202eb\u2066"),
    ],
)
def test_no_character_commands_the_terminal(text, shown):
    assert plain(text) == shown


def test_an_error_is_one_plain_line():
    assert str(UserError("a\nb \x1b[2J")) == r"a b \x1b[2J"


def test_a_large_value_is_quoted_in_short():
    for value in (10**400, "x" * 5000, [[]] * 1000, -(10**5000)):
        assert len(quoted(value)) < 100


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1+1", "'+1+1"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", r"\r=1"),
        ("＝1", "'＝1"),
        ("-1.25", "-1.25"),
        ("+3", "+3"),
        ("in_resnet20", "in_resnet20"),
        ("'=1", "'=1"),  # once is enough
        (-1.25, -1.25),
    ],
)
def test_a_cell_is_no_formula_and_a_number_stays_one(cell, written):
    assert escape_csv_value(cell) == written


def test_a_table_is_defused_in_its_cells_and_its_head():
    import pandas as pd

    table = pd.DataFrame({"=a": ["@x", None], "b": [-1.5, 2.0], "c": pd.array([1, None], "Int64")})
    assert csv_text(table, "%.3g") == "'=a,b,c\n'@x,-1.5,1\n,2,\n"
    assert list(table) == ["=a", "b", "c"]


def test_json_is_read_to_a_depth():
    assert loads("[" * DEEPEST + "]" * DEEPEST)
    for deep in ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "[" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000):
        with pytest.raises(ValueError, match=r"nested|Expecting"):
            loads(deep)


def test_numbers_that_nothing_has_room_for_are_none():
    assert not any(map(is_number, (float("nan"), float("inf"), 10**400, True, "1", None)))
    assert not any(map(is_count, (-1, 2**63, 1.0, True)))
    assert is_number(-1.5)
    assert is_count(2**63 - 1)


def test_what_an_exception_says_is_cut_to_its_first_line_or_joined_to_one():
    error = ValueError("no such key\n  in the file\n")
    assert first_line_of(error) == "no such key"
    assert reason_of(error) == "no such key in the file"
    assert first_line_of(KeyError(101)) == reason_of(KeyError(101)) == "KeyError: 101"
    assert first_line_of(KeyboardInterrupt()) == reason_of(KeyboardInterrupt()) == "KeyboardInterrupt"
