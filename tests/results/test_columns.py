"""The declarations of the columns, what their names say, and the page that is written from them."""

import csv
from pathlib import Path

import pytest
from support.hand_made import attack, card, corruption, ensemble, first, run

from robust_interp.report.glossary import definition
from robust_interp.results import columns_page
from robust_interp.results.column_names import declaration, measured_in, parse
from robust_interp.results.columns import KNOWN_ATTACKS, LEADERBOARD, RESULT_COLUMNS, STD, TABLES, Kind, Type
from robust_interp.results.scores import scores
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN, attack_column

ROOT = Path(__file__).parents[2]
EVERY = [(table, column) for table, columns in TABLES.items() for column in columns]


@pytest.mark.parametrize(
    ("table", "column"), [pytest.param(*one, id=f"{one[0]}-{one[1].name}") for one in EVERY]
)
def test_every_column_has_a_type_and_a_sentence(table, column):
    assert isinstance(column.type, Type)
    assert column.meaning[:1].isupper() or column.meaning[:1] in "`0123456789"
    assert column.meaning.endswith(".")
    assert column.meaning.count("`") % 2 == 0
    assert not column.see or (ROOT / "docs" / f"{column.see}.md").is_file()
    assert [other.name for other in TABLES[table]].count(column.name) == 1


def test_the_page_is_the_one_that_is_written_from_the_declarations():
    assert (ROOT / "docs" / "columns.md").read_text(encoding="utf-8") == columns_page.page(), (
        "write it anew: python -m robust_interp.results.columns_page > docs/columns.md"
    )


def test_the_lines_of_results_csv_hold_what_is_declared_and_nothing_else(tmp_path):
    one, other = card(seed=0), card(seed=1)
    both = ensemble(one, other)
    perturbations = (CLEAN, attack("pgd", 2), corruption("fog", 3))
    with Store(tmp_path) as store:
        cells = [(each, made, first(8)) for each in (one, other, both) for made in perturbations]
        found = scores(run(store, cells, "worst"), store)
    assert {name for score in found for name in score.row} == set(RESULT_COLUMNS)


@pytest.mark.parametrize(
    ("name", "kind", "series", "norm", "radius", "severity", "attack"),
    [
        ("clean", Kind.CLEAN, "clean", None, None, None, "clean"),
        ("common15", Kind.MEAN, "common15", None, None, None, "common15"),
        ("fog", Kind.CORRUPTION, "fog", None, None, None, "fog"),
        ("gaussian_noise_3", Kind.SEVERITY, "gaussian_noise", None, None, 3, "gaussian_noise"),
        ("pgd_2", Kind.ATTACK, "pgd", "Linf", 2, None, "pgd"),
        ("pgd_0.5", Kind.ATTACK, "pgd", "Linf", 0.5, None, "pgd"),
        ("pgd_1e-05", Kind.ATTACK, "pgd", "Linf", 0.00001, None, "pgd"),
        ("apgd_ce_l2_0.5", Kind.ATTACK, "apgd_ce_l2", "L2", 0.5, None, "apgd_ce"),
        ("PGDL2_0.5", Kind.ATTACK, "PGDL2", "L2", 0.5, None, "PGDL2"),
        ("pgd(alpha=1/255,steps=40)_8", Kind.ATTACK, "pgd(alpha=1/255,steps=40)", "Linf", 8, None, "pgd"),
        ("pgd_l2(steps=3)_0.5", Kind.ATTACK, "pgd_l2(steps=3)", "L2", 0.5, None, "pgd"),
        ("cw", Kind.ATTACK, "cw", "Linf", None, None, "cw"),
        ("worst_8", Kind.WORST, "worst", "Linf", 8, None, "worst"),
        ("worst_l2_0.5", Kind.WORST, "worst_l2", "L2", 0.5, None, "worst"),
        ("strong_l1_12", Kind.STRONG, "strong_l1", "L1", 12, None, "strong"),
        ("strong_arm_8", Kind.ATTACK, "strong_arm", "Linf", 8, None, "strong_arm"),  # somebody's plug-in
        ("fog_9", Kind.ATTACK, "fog", "Linf", 9, None, "fog"),  # no severity
    ],
)
def test_a_name_says_what_is_measured(name, kind, series, norm, radius, severity, attack):
    found = parse(name)
    assert (found.kind, found.series, found.norm) == (kind, series, norm)
    assert (found.radius, found.severity, found.attack) == (radius, severity, attack)
    assert found.strength == (radius or severity or 0)


def test_a_plug_ins_corruption_is_one_where_it_is_told():
    assert parse("darker_3").kind is Kind.ATTACK
    assert parse("darker_3", {"darker"}).severity == 3
    assert parse("darker", {"darker"}).measurements == [f"darker_{severity}" for severity in range(1, 6)]


@pytest.mark.parametrize(("norm", "radius"), [("Linf", 8.0), ("Linf", 0.25), ("L2", 0.5), ("L1", 12.0)])
def test_a_name_is_read_as_it_is_written(norm, radius):
    found = parse(attack_column("pgd", norm, radius))
    assert (found.attack, found.norm, found.radius) == ("pgd", norm, radius)


def test_a_mean_is_over_the_severities_of_its_corruptions():
    names = ("impulse_noise", "speckle_noise", "gaussian_noise", "shot_noise")
    assert [part.name for part in parse("noise").parts] == list(names)
    assert parse("noise").measurements == [f"{name}_{s}" for name in names for s in range(1, 6)]
    assert parse("pgd_2").measurements == ["pgd_2"]


@pytest.mark.parametrize("file", sorted((ROOT / "leaderboards").glob("*.csv")), ids=lambda path: path.stem)
def test_every_column_of_the_published_tables_is_declared(file):
    with file.open(encoding="utf-8") as lines:
        header = [name for name in next(csv.reader(lines)) if name != "dataset"]
    measured = measured_in(header)
    assert [name for name in header if declaration(name).kind is not None] == measured
    assert [name.removesuffix("_std") for name in header if declaration(name) is STD] == measured


IN_255THS, IN_PIXELS = " The number is ε in units of 1/255.", " Here ε is an L2 radius, in pixels of [0, 1]."
EXAMPLES = {  # of columns whose names are a pattern: a name, and what follows the definition
    "<corruption>": ("fog", ""),
    "<corruption>_<severity>": ("fog_3", ""),
    "worst_<eps>": ("worst_2", IN_255THS),
    "strong_<eps>": ("strong_2", IN_255THS),
    "<measured>_std": ("pgd_2_std", ""),
    "mce(<baseline>)": ("mce(net)", ""),
    "relative_mce(<baseline>)": ("relative_mce(net)", ""),
}
OF_ATTACKS = {
    "<attack>_<eps>": ("pgd_2", KNOWN_ATTACKS["pgd"] + IN_255THS),
    "<attack>_l2_<eps>": ("pgd_l2_0.5", KNOWN_ATTACKS["pgd"] + IN_PIXELS),
    "<attack>": ("cw", "Accuracy under this attack, with the parameters listed below."),
}


@pytest.mark.parametrize("column", LEADERBOARD, ids=lambda column: column.name)
def test_the_report_takes_its_definitions_from_the_declarations_and_those_of_attacks(column):
    if column.name in OF_ATTACKS:
        name, expected = OF_ATTACKS[column.name]
    else:
        name, more = EXAMPLES.get(column.name, (column.name, ""))
        expected = column.meaning.replace("`", "") + more
    assert definition(name, {"fog"}) == expected
    assert declaration(name, {"fog"}).name == column.name
