"""The report: what it shows, from which numbers; that it opens alone, in a browser, and runs no names."""

import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from support.hand_made import attack, card, corruption, ensemble, first, measured, run
from support.messages import one_line

from robust_interp import zoo
from robust_interp.core.errors import UserError
from robust_interp.figures import robustness, style
from robust_interp.figures.origin import FigureOrigin
from robust_interp.models import ARCHITECTURES
from robust_interp.report import curves, glossary, graphics, page, provenance
from robust_interp.results import export, leaderboard
from robust_interp.results.combine import gather
from robust_interp.results.folders import runs_in
from robust_interp.results.intervals import interval
from robust_interp.results.scores import scores
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN

VOID = {"meta", "input", "img", "br", "hr", "link"}
HOSTILE = "<script>alert(\"x\")</script> & 'net' $1"
NOISES = ("impulse_noise", "speckle_noise", "gaussian_noise", "shot_noise")


class Page(HTMLParser):
    """The page's elements in order, as (tag, attributes, text inside), and faults in their nesting."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.faults, self._open = [], [], []
        self.feed(text)
        self.close()
        self.faults += [element[0] for element in self._open]

    def handle_starttag(self, tag, attrs):
        element = [tag, dict(attrs), ""]
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])

    def handle_endtag(self, tag):
        if not self._open or self._open.pop()[0] != tag:
            self.faults.append(f"</{tag}>")

    def handle_data(self, data):
        for element in self._open:
            element[2] += data

    def all(self, tag, **attributes):
        return [
            (found, text)
            for name, found, text in self.elements
            if name == tag and all(found.get(key.strip("_")) == value for key, value in attributes.items())
        ]


def cells_of(text, table='id="board"'):
    """Texts of a table's cells by row."""
    body = re.search(rf"<table {table}.*?<tbody>(.*?)</tbody>", text, re.DOTALL)[1]
    rows = re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    return [[Page(cell).elements[0][2] for cell in re.findall(r"<t[dh].*?</t[dh]>", row)] for row in rows]


def columns_of(text):
    return re.findall(r'<th scope="col" data-column="(.*?)"', text)


def measure(folder, names=("net",), dataset="digits", noise=False):
    """Three seeds and their ensemble of each model, on ten images each; the second model is a bit worse."""
    with Store(folder) as store:
        done = []
        for worse, name in enumerate(names):
            singles = [card(name, seed) for seed in range(3)]
            for single, clean, weak, strong in zip(
                singles, (10, 9, 8), (9, 8, 7), (3, 3, 3 - worse), strict=True
            ):
                done += [
                    (single, CLEAN, first(clean)),
                    (single, attack("fgsm", 2), first(weak)),
                    (single, attack("pgd", 2, alpha=2 / 255, steps=20), first(strong)),
                ]
            together = ensemble(*singles)
            done += [
                (together, CLEAN, first(10)),
                (together, attack("fgsm", 2), first(8)),
                (together, attack("pgd", 2, alpha=2 / 255, steps=20), first(4 - worse)),
            ]
            if noise:
                done += [
                    (single, corruption(kind, severity), first(9 - severity))
                    for single in singles
                    for kind in NOISES
                    for severity in range(1, 6)
                ]
        run(store, done, dataset=dataset)
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The folder of a report of two models, one of them with a hostile name, and its page."""
    place = tmp_path_factory.mktemp("report")
    results = measure(place / "results", ("net", HOSTILE), noise=True)
    page.write([results], place / "report")
    return place / "report", (place / "report" / "index.html").read_text(encoding="utf-8")


def test_every_number_of_the_table_is_the_measured_one(report):
    _, text = report
    shown = dict(zip(columns_of(text), zip(*cells_of(text), strict=True), strict=True))
    lines = list(shown["model"])
    single, together = lines.index("net"), lines.index("net ×3")
    # Clean 100, 90 and 80 %: t at 0.975 with two degrees is 4.302653, so 90 ± 24.8; cut at 100.
    assert shown["clean"][single] == "90.0 ± 10.065.2–100.0"
    assert shown["fgsm_2"][single] == "80.0 ± 10.055.2–100.0"
    # Seeds that agree say nothing of their spread.
    assert shown["pgd_2"][single] == "30.0 ± 0.0"
    # Wilson's interval of 8 of 10 is in every table of it: 49.0 to 94.3.
    assert shown["fgsm_2"][together] == "80.049.0–94.3"
    # Severities leave 8, 7, 6, 5 and 4 of ten right in every noise and seed.
    assert shown["noise"][single] == "60.0 ± 0.0"
    assert shown["noise"][together] == ""
    # PGD leaves 40 and 30 % of the ensembles right, 30 and 26.7 % of the single models.
    others = [i for i in range(4) if i not in (single, together)]
    assert [shown["rank"][i] for i in (together, single, *others)] == ["1", "2", "2", "4"]


def test_the_values_that_sort_are_the_unrounded_ones(tmp_path):
    with Store(tmp_path / "results") as store:
        run(store, [(card("a"), CLEAN, "110"), (card("b"), CLEAN, "100")])
    page.write([tmp_path / "results"], tmp_path / "report")
    text = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    values = [attributes["data-value"] for attributes, _ in Page(text).all("td", class_="accuracy")]
    assert sorted(map(float, values)) == pytest.approx([100 / 3, 200 / 3], abs=1e-7)


@pytest.fixture
def two_protocols(tmp_path):
    """Two models by each of two protocols; by `worst`, on twenty images as well."""
    with Store(tmp_path / "results") as store:
        for protocol, n in (("final", 10), ("worst", 10), ("worst", 20)):
            done = [(card(name), CLEAN, "1" * n) for name in ("net_a", "net_b")]
            rights = {"net_a": n // 2, "net_b": n // 2 - 1}
            done += [(card(name), pgd(steps=n), first(right, n)) for name, right in rights.items()]
            run(store, done, protocol=protocol)
    return page.write([tmp_path / "results"], tmp_path / "report")


def groups_of(text):
    """Of each group of the leaderboard its heading, and rank and model of its lines."""
    board = re.search(r'<table id="board".*?</thead>(.*?)</table>', text, re.DOTALL)[1]
    found = {}
    for body in re.findall(r"<tbody.*?</tbody>", board, re.DOTALL):
        head, *rows = re.findall(r"<tr.*?</tr>", body, re.DOTALL)
        cells = [re.findall(r"<t[dh].*?</t[dh]>", row, re.DOTALL)[:2] for row in rows]
        found[Page(head).elements[0][2]] = [tuple(Page(c).elements[0][2] for c in row) for row in cells]
    return found


def test_ranks_stand_under_what_they_are_within(two_protocols):
    """No rank stands twice in one group, unless for equal accuracies; a single group needs no heading."""
    text = two_protocols.read_text(encoding="utf-8")
    lines = [("1", "net_a"), ("2", "net_b")]
    assert groups_of(text) == {
        "protocol final, n = 10": lines,
        "protocol worst, n = 10": lines,
        "protocol worst, n = 20": lines,
    }
    assert "Rows are ranked and sorted within each group" in text
    assert re.findall(r'data-column="(\w+)"[^>]*aria-sort="(\w+)"', text) == [("rank", "ascending")]
    found = Page(text)
    assert found.faults == []
    spans = {int(attributes["colspan"]) for attributes, _ in found.all("th", scope="rowgroup")}
    assert spans == {len(columns_of(text))}


def test_one_group_has_no_heading(report):
    _, text = report
    assert "rowgroup" not in text
    assert "ranked and sorted within" not in text


def test_the_page_is_well_formed_and_accessible(report):
    _, text = report
    found = Page(text)
    assert found.faults == []
    ids = [attributes["id"] for _, attributes, _ in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _, _ in found.elements if re.fullmatch(r"h\d", tag)]
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    graphics_shown = found.all("svg")
    assert len(graphics_shown) >= 2
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes, _ in graphics_shown)
    assert all("scope" in attributes for attributes, _ in found.all("th"))
    assert len(found.all("figure")) == len(found.all("figcaption")) == len(graphics_shown)


def test_every_link_leads_somewhere_beside_or_on_the_page(report):
    folder, text = report
    ids = set(re.findall(r'id="([^"]+)"', text))
    addresses = re.findall(r'\b(?:href|src)="([^"]*)"', text)
    assert {"leaderboard.csv", "results.csv", "accuracy_by_eps.svg"} <= set(addresses)
    for address in addresses:
        if address.startswith("#"):
            assert address[1:] in ids
        else:
            assert (folder / address).is_file()
    refs = re.findall(r"url\(#(.*?)\)", text)
    assert refs
    assert set(refs) <= ids


def test_the_page_needs_nothing_from_elsewhere(report):
    _, text = report
    assert set(re.findall(r"https?://[^\"'\s]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_the_headers_lead_to_definitions(report):
    _, text = report
    found = Page(text)
    terms = {attributes["id"]: text for attributes, text in found.all("dt")}
    for attributes, _ in found.all("a", class_="what"):
        assert attributes["href"][1:] in terms
    assert terms["def-pgd"] == "pgd_2"
    assert len(found.all("a", class_="what")) == len(columns_of(text))


def test_names_are_text_whatever_stands_in_them(report):
    folder, text = report
    assert len(Page(text).all("script")) == 1  # the page's own
    assert HOSTILE in {cell for row in cells_of(text) for cell in row}
    assert HOSTILE in (folder / "accuracy_by_eps.csv").read_text(encoding="utf-8").replace('""', '"')
    assert "alert(" not in Page(text).all("script")[0][1]


@pytest.mark.slow
def test_the_same_store_gives_the_same_bytes(tmp_path):
    results = measure(tmp_path / "results", (HOSTILE,))
    one, two = (page.write([results], tmp_path / name).parent for name in ("one", "two"))
    assert {path.name for path in one.iterdir()} == {path.name for path in two.iterdir()}
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name


@pytest.mark.slow
def test_the_files_beside_it_are_those_of_the_store(report):
    folder, _ = report
    board, _, _ = gather([folder.parent / "results"])
    assert (folder / "leaderboard.csv").read_text() == export.to_csv(board)
    results = pd.read_csv(folder / "results.csv")
    assert len(results) == 2 * (4 * 3 + 3 * 4 * 5)
    assert {"accuracy_by_eps.png", "accuracy_by_severity.svg"} <= {path.name for path in folder.iterdir()}


def test_how_the_numbers_were_made_is_told(report):
    _, text = report
    made = re.search(r'<section id="made">(.*?)</section>', text, re.DOTALL)[1]
    rows = [
        [Page(cell).elements[0][2] for cell in re.findall(r"<td.*?</td>", row)] for row in made.split("<tr>")
    ]
    assert ["pgd_2", "pgd", "Linf", "2", "2", "20", "1", "0", "2", "0"] in rows
    assert ["fgsm_2", "fgsm", "Linf", "2", "", "1", "1", "", "2", "0"] in rows
    assert ["shot_noise", "generated@0", "1, 2, 3, 4, 5"] in rows
    assert "digits-images" in made
    assert any(row[:1] == ["digits"] and "10" in row and "final" in row for row in rows)


def test_points_have_the_mean_and_band_over_seeds(tmp_path):
    runs, _ = runs_in([measure(tmp_path)])
    table = curves.points(runs).set_index(["entry", "series", "x"])
    seeds = table.loc[("net", "fgsm", 2.0)]
    assert (seeds["accuracy"], seeds["std"], seeds["seeds"], seeds["n"]) == pytest.approx((80, 10, 3, 10))
    # t at 0.975 with two degrees is 4.302653: 80 ± 24.84, cut at 100, as in the table
    assert (seeds["band_low"], seeds["band_high"]) == pytest.approx((55.159, 100), abs=1e-3)
    together = table.loc[("net ×3", "fgsm", 2.0)]
    assert (together["band_low"], together["band_high"]) == pytest.approx((49.0, 94.3), abs=0.05)
    assert table.loc[("net", "clean", 0.0), "band_high"] == 100.0


def test_a_cell_that_two_runs_share_counts_once(tmp_path):
    measure(tmp_path)
    with Store(tmp_path) as store:
        run(store, [(card("net", seed), CLEAN, first(10 - seed)) for seed in range(3)])
    runs, _ = runs_in([tmp_path])
    assert len(runs) == 2
    table = curves.points(runs)
    assert (table["series"] == "clean").sum() == 2  # the single models and their ensemble
    assert set(table[table["entry"] == "net"]["seeds"]) == {3}


def test_a_seed_that_was_trained_again_is_no_second_seed(tmp_path):
    old, pgd = card(seed=0), attack("pgd", 8)
    new = replace(old, identity={"weights": "trained again"})
    with Store(tmp_path) as store:
        run(store, [(old, CLEAN, first(9)), (old, pgd, first(2)), (old, attack("fgsm", 8), first(3))])
        run(store, [(new, CLEAN, first(9)), (new, pgd, first(8))])
    found = curves.points(runs_in([tmp_path])[0])
    assert found[["series", "seeds", "accuracy"]].values.tolist() == [["clean", 1, 90.0], ["pgd", 1, 80.0]]
    assert found["std"].isna().all()


def test_noise_of_two_sources_is_two_curves(tmp_path):
    with Store(tmp_path) as store:
        for source, right in (("released", "10"), ("generated@0", "11")):
            run(store, [(card("a"), CLEAN, "11"), (card("a"), corruption("fog", 1, source), right)])
    table = curves.points(runs_in([tmp_path])[0])
    found = dict(zip(zip(table["entry"], table["series"], strict=True), table["accuracy"], strict=True))
    assert found == {
        ("a (released)", "clean"): 100.0,
        ("a (released)", "fog"): 50.0,
        ("a (generated@0)", "clean"): 100.0,
        ("a (generated@0)", "fog"): 100.0,
    }


def pgd(eps_255=2, seed=0, steps=20, alpha=2 / 255):
    return attack("pgd", eps_255, seed, alpha=alpha, steps=steps)


def measured_apart(folder, *runs):
    """Each run: its train seeds, its perturbation, how many of n it leaves right, and fields of `run`."""
    with Store(folder) as store:
        for seeds, perturbation, right, n, fields in runs:
            for_each = [(card("a", seed), CLEAN, "1" * n) for seed in seeds]
            for_each += [(card("a", seed), perturbation, first(right, n)) for seed in seeds]
            run(store, for_each, **fields)
    return runs_in([folder])[0]


@pytest.mark.parametrize(
    ("second", "names"),
    [
        (((1,), pgd(), 2, 10, {}), ["a (seed 0)", "a (seed 1)"]),
        (((0, 1), pgd(steps=40), 2, 10, {}), ["a (seed 0)", "a (seeds 0, 1)"]),
        (((1,), pgd(steps=40), 2, 10, {}), ["a (seed 0)", "a (seed 1)"]),
        (((1,), pgd(alpha=1 / 255), 2, 10, {}), ["a (seed 0)", "a (seed 1)"]),
        (((0,), pgd(seed=1), 2, 10, {}), ["a (attack seed 0)", "a (attack seed 1)"]),
        (((0,), pgd(steps=40), 4, 20, {}), ["a n=10", "a n=20"]),
        (((0,), pgd(steps=40), 2, 10, {"protocol": "worst"}), ["a final", "a worst"]),
        (((0,), pgd(steps=40), 2, 10, {}), ["a"]),  # the newer takes the older's place, as in the table
    ],
)
def test_no_curve_averages_what_was_measured_apart(tmp_path, second, names):
    """Whatever differs between two runs, the curves have the table's numbers, 80 % and 20 %, none between."""
    runs = measured_apart(tmp_path, ((0,), pgd(), 8, 10, {}), second)
    board = leaderboard.entries_frame(*runs)
    assert set(board["pgd_2"]) <= {80.0, 20.0}
    table = curves.points(runs)
    curve = table[table["series"] == "pgd"]
    assert sorted(curve["accuracy"]) == sorted(board["pgd_2"])
    assert sorted(curve["entry"]) == names
    assert sorted(table[table["series"] == "clean"]["entry"]) == names


def test_images_of_the_same_name_and_number_that_are_others_make_another_curve(tmp_path):
    cells = [(card("a"), CLEAN, first(9)), (card("a"), pgd(), first(8))]
    with Store(tmp_path) as store:
        scored = scores(run(store, cells), store)
    others = [replace(s, row=s.row | {"subset_hash": "others", "accuracy": 0.0}) for s in scored]
    table = curves.points([scored, [replace(s, accuracy=0.0) for s in others]])
    assert sorted(table[table["series"] == "pgd"]["accuracy"]) == [0.0, 80.0]
    assert table["entry"].nunique() == 2


def test_radii_that_were_attacked_with_other_parameters_are_not_joined(tmp_path):
    runs = measured_apart(
        tmp_path,
        ((0,), pgd(2, alpha=0.5 / 255), 8, 10, {}),
        ((0,), pgd(4, alpha=1 / 255), 5, 10, {}),  # a quarter of the radius as well
        ((0,), pgd(8, steps=40, alpha=2 / 255), 3, 10, {}),
    )
    table = curves.points(runs).set_index(["entry", "x"])["accuracy"]
    assert dict(table) == {
        ("a", 0.0): 100.0,
        ("a (steps 20)", 0.0): 100.0,
        ("a (steps 20)", 2.0): 80.0,
        ("a (steps 20)", 4.0): 50.0,
        ("a (steps 40)", 0.0): 100.0,
        ("a (steps 40)", 8.0): 30.0,
    }
    (panel,) = robustness.eps_figure(curves.points(runs)).axes
    drawn = sorted(list(bars.lines[0].get_ydata()) for bars in panel.containers)
    assert drawn == [[100, 30], [100, 80, 50]]
    (key,) = panel.figure.legends
    assert [text.get_text() for text in key.get_texts()] == ["a (steps 20)", "a (steps 40)"]


def test_ensembles_of_other_weights_have_names_of_their_own(tmp_path):
    old = replace(ensemble(card("a", 0), card("a", 1)), seeds=())  # of members without a train seed
    new = replace(old, identity={"ensemble": ["others"]})
    with Store(tmp_path) as store:
        for together, right in ((old, 8), (new, 2)):
            run(store, [(together, CLEAN, first(10)), (together, pgd(), first(right))])
    table = curves.points(runs_in([tmp_path])[0])
    by_name = table[table["series"] == "pgd"].set_index("entry")["accuracy"]
    assert sorted(by_name) == [20.0, 80.0]
    assert by_name.index.is_unique


def test_a_strength_that_not_every_seed_was_measured_at_has_no_point(tmp_path):
    with Store(tmp_path) as store:
        done = [(card("a", seed), CLEAN, first(10)) for seed in (0, 1)]
        run(store, [*done, (card("a", 0), attack("fgsm", 2), first(5))])
    assert set(curves.points(runs_in([tmp_path])[0])["series"]) == {"clean"}


def test_improvements_take_all_corrupted_images_together(tmp_path):
    with Store(tmp_path) as store:
        plan = run(
            store,
            [
                (ensemble(card("net", 0), card("net", 1)), perturbation, "1")
                for perturbation in (CLEAN, attack("pgd", 2), corruption("fog", 1), corruption("fog", 2))
            ],
        )
        scored = scores(plan, store)
    gains = (1.0, 5.5, 2.0, 3.0)
    scored = [replace(s, row=s.row | {"improvement": g}) for s, g in zip(scored, gains, strict=True)]
    table = curves.improvements([scored, scored]).set_index("column")["improvement"]
    assert dict(table) == {"clean": 1.0, "pgd_2": 5.5, "corrupted": 2.5}
    bare = [replace(s, row={key: v for key, v in s.row.items() if key != "improvement"}) for s in scored]
    assert curves.improvements([bare]).empty


@pytest.mark.slow
def test_the_curves_are_the_points(tmp_path):
    runs, _ = runs_in([measure(tmp_path, noise=True)])
    points = curves.points(runs)
    fgsm, pgd, fgsm_together, pgd_together = robustness.eps_figure(points).axes
    assert [panel.get_title("left") for panel in (fgsm, pgd)] == ["fgsm", "pgd"]
    (curve,) = fgsm.lines
    assert (list(curve.get_xdata()), list(curve.get_ydata())) == ([0, 2], [90, 80])
    (band,) = fgsm.collections
    corners = band.get_paths()[0].vertices  # 90 ± 24.84 and 80 ± 24.84
    assert {(x, round(y, 2)) for x, y in corners} == {(0, 65.16), (0, 100), (2, 55.16), (2, 100)}
    ((_, _, (bars,)),) = fgsm_together.containers
    ends = [sorted(y for _, y in segment) for segment in bars.get_segments()]
    assert ends[1] == pytest.approx([49.0, 94.3], abs=0.05)
    assert list(pgd_together.lines[0].get_ydata()) == [100, 40]
    panels = robustness.severity_figure(points).axes
    assert [panel.get_title("left") for panel in panels[:4]] == list(NOISES)
    assert list(panels[0].lines[0].get_ydata()) == [90, 80, 70, 60, 50, 40]
    assert panels[0].get_xlabel() == "severity (0: clean)"


def test_gains_have_intervals_over_the_images(tmp_path):
    members = card("net", 0), card("net", 1)
    with Store(tmp_path) as store:
        rights = ("1100", "1010", "1111")  # by both, one, one and no member; all by the ensemble
        classifiers = (*members, ensemble(*members))
        plan = run(store, [(c, CLEAN, right) for c, right in zip(classifiers, rights, strict=True)])
        scored = scores(plan, store)
    (line,) = curves.improvements([scored]).to_dict("records")
    # Gains of 0, 50, 50 and 100 points: mean 50, std 40.82; t at 0.975 with three degrees is 3.182446.
    assert line["improvement"] == 50
    assert (line["low"], line["high"]) == pytest.approx((50 - 64.962, 50 + 64.962), abs=1e-2)
    (panel,) = robustness.improvement_figure(pd.DataFrame([line])).axes
    (bar,) = panel.collections[0].get_segments()
    assert list(bar[:, 1]) == pytest.approx([line["low"], line["high"]])


@pytest.mark.parametrize(("right", "gain"), [("1100", 0), ("1111", 100), ("1", 0)])
def test_a_gain_that_is_the_same_for_all_images_has_no_interval(tmp_path, right, gain):
    members, alone = (card("net", 0), card("net", 1)), "0000" if gain else right
    with Store(tmp_path) as store:
        lines = [(member, pgd(), alone) for member in members]
        scored = scores(run(store, [*lines, (ensemble(*members), pgd(), right)]), store)
    table = curves.improvements([scored])
    assert table["improvement"].tolist() == [gain]
    assert table[["low", "high"]].isna().all(axis=None)
    (panel,) = robustness.improvement_figure(table).axes
    assert [list(bar[:, 1]) for lines in panel.collections for bar in lines.get_segments()] == []


def test_a_gain_and_its_interval_are_of_the_same_attack_seed(tmp_path):
    """The members lose all four images with attack seed 0, and keep one with seed 1, which is run later."""
    members = card("net", 0), card("net", 1)
    runs = []
    with Store(tmp_path) as store:
        for seed, alone in ((0, "0000"), (1, "1000")):
            one = pgd(2, seed=seed)
            lines = [(member, one, alone) for member in members]
            runs.append(scores(run(store, [*lines, (ensemble(*members), one, "1100")]), store))
    for line in curves.improvements(runs).to_dict("records"):
        assert (line["low"] + line["high"]) / 2 == pytest.approx(line["improvement"])
    (line,) = curves.improvements(runs[:1]).to_dict("records")
    assert line["improvement"] == 50


@pytest.mark.slow
def test_differences_to_a_baseline(tmp_path):
    """Three seeds of each, 90, 80 and 70 % beside 60, 50 and 40 %; of single runs by paired images."""
    with Store(tmp_path) as store:
        done = [(card("base", seed), pgd(), first(6 - seed)) for seed in range(3)]
        done += [(card("net", seed), pgd(), first(9 - seed)) for seed in range(3)]
        done += [(ensemble(card("base", 0), card("base", 1)), pgd(), first(5))]
        done += [(ensemble(card("net", 0), card("net", 1)), pgd(), first(8))]
        done += [(card("net", 0), pgd(4), first(3))]  # the baseline has no such number
        run(store, done)
    runs, _ = runs_in([tmp_path])
    table = curves.differences(runs, "base").set_index("entry")
    assert sorted(table.index) == ["net", "net ×2"]
    # Welch: standard error √(100/3 + 100/3) = 8.165, four degrees, t at 0.975 = 2.776445.
    assert list(table.loc["net", ["x", "difference"]]) == pytest.approx([2, 30])
    assert list(table.loc["net", ["low", "high"]]) == pytest.approx([30 - 22.67, 30 + 22.67], abs=0.01)
    # Three of ten are right by one alone; with one added to each kind (Bonett and Price) 4 of 12, and 1
    one, other = 4 / 12, 1 / 12
    half = 1.959964 * ((one + other - (one - other) ** 2) / 12) ** 0.5
    ends = [100 * (one - other - half), 100 * (one - other + half)]
    assert table.loc["net ×2", "difference"] == pytest.approx(30)
    assert list(table.loc["net ×2", ["low", "high"]]) == pytest.approx(ends, abs=0.01)
    figure = robustness.eps_figure(curves.points(runs), table.reset_index(), "base", chance=10.0)
    single, beside, together, beside_it = figure.axes
    titles = [panel.get_title("left") for panel in figure.axes]
    assert titles == ["pgd, single models", "vs base", "pgd, ensembles", "vs base"]
    assert len({panel.get_position().y0 for panel in figure.axes}) == 1  # in one row
    assert [list(bars.lines[0].get_ydata()) for bars in beside.containers] == [[30]]
    assert [list(bars.lines[0].get_ydata()) for bars in beside_it.containers] == [pytest.approx([30])]
    for panel in (single, together):
        assert [10.0, 10.0] in [list(line.get_ydata()) for line in panel.lines]


def cards(*names, interval=""):
    return [replace(card(name), lambda_init=interval) for name in names]


def test_the_default_baseline_is_the_first_model_without_a_lambda():
    with_lambda = cards("in_resnet20", "a_resnet", interval="0.20-0.25")
    for names, baseline in (
        (["resnet18"], "resnet18"),
        (["preact_resnet20", "my_net"], "my_net"),
        (["plain_net20", "resnext29"], "resnext29"),  # the paper's baseline has skip connections
        (["plain_net20"], "plain_net20"),
    ):
        assert curves.usual_baseline(with_lambda + cards(*names)) == baseline
        assert curves.usual_baseline(cards(*names) + with_lambda) == baseline
    assert curves.usual_baseline(with_lambda) == "a_resnet"  # all have one
    in_one_checkpoint = cards("net", interval="0.20-0.25") + cards("net", "other")
    assert curves.usual_baseline(in_one_checkpoint) == "other"
    assert curves.usual_baseline(cards("b", "a")) == "a"
    assert curves.usual_baseline(cards("a", "a")) is None


def test_a_model_that_is_no_checkpoint_has_a_lambda_by_its_name():
    """A model given as an object has no recorded interval."""
    for name in ARCHITECTURES:
        has_none = name.startswith(("preact_resnet", "resnext"))  # a plain_net comes after all others
        for named in (name, f"{name}.tag", f"{name}(stored=keep)", f"{name}+another_net"):
            assert curves.usual_baseline(cards(named, "zz_net")) == (named if has_none else "zz_net")


def test_a_difference_is_to_the_baselines_row_of_the_same_seeds_else_of_the_most(tmp_path):
    """The baseline was first measured with one seed (60 %), then with three (60, 50 and 40 %)."""
    with Store(tmp_path) as store:
        run(store, [(card("base", 0), pgd(), first(6)), (card("net", 0), pgd(), first(9))])
        done = [(card("base", seed), pgd(), first(6 - seed)) for seed in range(3)]
        done += [(card("net", seed), pgd(), first(9 - seed)) for seed in range(3)]
        run(store, [*done, (card("other", 0), pgd(), first(7)), (card("other", 1), pgd(), first(7))])
    runs, _ = runs_in([tmp_path])
    table = curves.differences(runs, "base")
    found = table.groupby("entry")["difference"].apply(sorted).to_dict()
    expected = {"net (seed 0)": 30, "net (seeds 0, 1, 2)": 30, "other": 20}
    assert {name: pytest.approx([value]) for name, value in expected.items()} == found


def test_all_differences_of_an_entry_are_to_one_row_of_the_baseline(tmp_path):
    """The baseline has the recipe of net at ε = 2 only, and another recipe at 2 and 4."""
    with Store(tmp_path) as store:
        done = [(card("base"), pgd(2), first(6)), (card("net"), pgd(2), first(9))]
        done += [(card("base", recipe="long"), pgd(eps), first(5)) for eps in (2, 4)]
        run(store, [*done, (card("net"), pgd(4), first(8)), (card("far", recipe="far"), pgd(4), first(7))])
    table = curves.differences(runs_in([tmp_path])[0], "base")
    found = table[["entry", "x", "difference", "baseline"]].to_dict("split")["data"]
    assert sorted(found) == [["far", 4, 20, "base @long"], ["net", 2, 30, "base @quick"]]


@pytest.mark.parametrize("asked", ["clean", "fog", ""])
def test_a_curve_of_no_attack_is_refused(command, tmp_path, asked):
    with Store(tmp_path / "results") as store:
        run(store, [(card("a"), made, first(5)) for made in (CLEAN, pgd(), corruption("fog", 1))])
    status, out, err = command("plot", "curve", tmp_path / "results", "--attack", asked)
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert "attack" in err


def test_ensembles_of_two_sizes_look_different(tmp_path):
    members = [card("a", seed) for seed in range(3)]
    with Store(tmp_path) as store:
        run(store, [(one, pgd(), first(5)) for one in (*members, ensemble(*members[:2]), ensemble(*members))])
    single, together = (figure := robustness.eps_figure(curves.points(runs_in([tmp_path])[0]))).axes
    two, three = (bars.lines[0] for bars in together.containers)
    assert two.get_color() != three.get_color()
    assert two.get_marker() != three.get_marker()
    assert single.lines[0].get_color() == two.get_color()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a, a ×2", "a ×3"]


def test_seeds_that_agree_exactly_have_no_band(tmp_path):
    with Store(tmp_path) as store:
        run(store, [(card("net", seed), pgd(), first(3)) for seed in range(3)])
    (point,) = curves.points(runs_in([tmp_path])[0]).to_dict("records")
    assert (point["accuracy"], point["std"]) == (30, 0)
    assert math.isnan(point["band_low"])
    assert math.isnan(point["band_high"])


def test_published_rows_are_curves_of_reference(tmp_path):
    board, *_ = gather([Path(__file__).parents[2] / "leaderboards" / "paper_cifar10.csv"])
    panels = {(attack, together) for attack in ("fgsm", "ifgsm", "pgd") for together in (False, True)}
    table = curves.published(board, {"in_resnet110", "net"}, panels)
    assert set(table["entry"]) == {"in_resnet110 (paper)"}
    single = table[(table["members"] == 1) & (table["series"] == "pgd")]
    # Of λ from 0.20 to 0.25, in the paper's table
    assert dict(zip(single["x"], single["accuracy"], strict=True)) == {1: 65.66, 2: 31.74, 4: 5.01}
    points = pd.DataFrame(
        [
            {"entry": "net", "members": 1, "kind": kind, "series": series, "x": x, "norm": norm, "n": 9}
            | {"seeds": 1, "accuracy": 50.0, "band_low": 40.0, "band_high": 60.0}
            for kind, series, x, norm in (("clean", "clean", 0, None), ("attack", "pgd", 2, "Linf"))
        ]
    )
    figure = robustness.eps_figure(points, published=table)
    (panel,) = figure.axes
    lines = [list(line.get_ydata()) for line in panel.lines]
    clean = table[(table["members"] == 1) & (table["series"] == "clean")]["accuracy"].tolist()
    assert clean + single["accuracy"].tolist() in lines
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["net", "in_resnet110 (paper)"]
    assert [text.get_text() for text in panel.get_xticklabels()] == ["0", "1", "2", "4"]


def test_labels_of_ticks_do_not_touch_and_the_measured_have_them_first():
    figure = robustness.eps_figure(
        pd.DataFrame(
            [
                {"entry": "net", "members": 1, "kind": "attack", "series": "pgd", "x": x, "norm": "Linf"}
                | {"n": 9, "seeds": 1, "accuracy": 50.0, "band_low": 40.0, "band_high": 60.0}
                for x in (0, 8, 31, 32)
            ]
        ),
        published=pd.DataFrame(
            [
                {"entry": "of paper", "members": 1, "series": "pgd", "x": x, "accuracy": 5.0}
                for x in (1, 4, 7, 16)
            ]
        ),
    )
    (panel,) = figure.axes
    assert list(panel.get_xticks()) == [0, 1, 4, 7, 8, 16, 31, 32]
    assert [text.get_text() for text in panel.get_xticklabels()] == ["0", "", "4", "", "8", "16", "", "32"]


def test_improvements_are_bars_in_the_colour_of_their_model():
    table = pd.DataFrame(
        [("b ×2", "clean", 1.5), ("b ×2", "pgd_2", 4.0), ("a ×2", "pgd_2", -1.0)],
        columns=["entry", "column", "improvement"],
    )
    (panel,) = robustness.improvement_figure(table).axes
    heights = {
        bars.get_label(): ([bar.get_height() for bar in bars], bars[0].get_facecolor())
        for bars in panel.containers
    }
    assert heights == {
        "b ×2": ([1.5, 4.0], to_rgba(style.LINES[1])),
        "a ×2": ([-1.0], to_rgba(style.LINES[0])),
    }
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["clean", "pgd_2"]


@pytest.mark.slow
def test_a_legend_of_long_names_stays_inside_its_figure(tmp_path):
    names = [f"{i}_architecture_with_a_name_that_is_long" for i in range(4)]
    runs, _ = runs_in([measure(tmp_path, names)])
    figure = robustness.eps_figure(curves.points(runs))
    style.save(figure, tmp_path / "drawn")
    ends = figure.legends[0].get_window_extent()
    assert 0 <= ends.x0 < ends.x1 <= figure.bbox.width


def line(**fields):
    return pd.Series({"seeds": 1, "members": 1, "n_examples": 10, "pgd_2_std": float("nan")} | fields)


@pytest.mark.parametrize(
    ("fields", "column", "ends"),
    [
        ({"pgd_2": 80.0}, "pgd_2", (49.0, 94.3)),
        ({"pgd_2": 80.0, "seeds": 3, "members": 3}, "pgd_2", (49.0, 94.3)),
        ({"pgd_2": 80.0, "pgd_2_std": 1.0, "seeds": 2}, "pgd_2", (71.0, 89.0)),  # 12.706 / sqrt(2) = 8.98
        ({"pgd_2": 80.0, "seeds": 5}, "pgd_2", None),  # a mean over seeds whose deviation is not told
        (
            {"pgd_2": 80.0, "pgd_2_std": 1.0, "seeds": float("nan")},
            "pgd_2",
            None,
        ),  # over nobody knows how many
        ({"noise": 80.0, "noise_std": float("nan")}, "noise", None),
        ({"common15": 80.0, "common15_std": float("nan")}, "common15", None),
        (
            {"strong_2": 80.0, "strong_2_std": float("nan"), "n_examples": 99, "strong_n": 10},
            "strong_2",
            (49.0, 94.3),
        ),
        ({"pgd_2": float("nan")}, "pgd_2", None),
        ({"cw": 80.0, "cw_std": float("nan")}, "cw", (49.0, 94.3)),  # an attack without a radius
    ],
)
def test_intervals(fields, column, ends):
    found = interval(line(**fields), column)
    assert found is None if ends is None else found == pytest.approx(ends, abs=0.05)


def test_coefficients_are_those_of_the_measured_weights():
    """Against the λ in the weights files themselves, which are in half precision."""
    from robust_interp.analysis import coefficients

    shipped = [c for c in zoo.checkpoints(dataset="digits") if c.seed in (0, 1)]
    chosen = [c for c in shipped if c.architecture == "in_resnet20"]
    table = provenance.coefficients(shipped, [c.record["weights_sha256"] for c in chosen])
    expected = coefficients.over_depth(chosen)
    for name in ("model", "train_seed", "block", "stage", "depth", "blocks", "images"):
        assert list(table[name]) == list(expected[name])
    assert list(table["mean"]) == pytest.approx(list(expected["mean"]), rel=2**-11, abs=1e-6)


@pytest.mark.slow
def test_the_page_shows_coefficients_of_measured_checkpoints(tmp_path):
    chosen = next(c for c in zoo.checkpoints(dataset="digits") if c.architecture == "in_resnet20")
    with Store(tmp_path / "results") as store:
        known = card("in_resnet20", chosen.seed, weights_sha256=chosen.record["weights_sha256"])
        run(store, [(known, CLEAN, "1")])
    page.write([tmp_path / "results"], tmp_path / "report")
    assert 'id="coefficients"' in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    table = pd.read_csv(tmp_path / "report" / "coefficients.csv")
    assert list(table["mean"]) == list(
        json.loads((chosen.folder / "train.json").read_text())["lambda"].values()
    )


def test_what_was_not_measured_has_no_section(report):
    _, text = report
    sections = [attributes["id"] for attributes, _ in Page(text).all("section")]
    assert {"leaderboard", "eps", "severity", "made", "definitions"} <= set(sections)
    assert not {"audit", "claims", "coefficients", "figures"} & set(sections)


AUDIT_HEAD = (
    "model,recipe,lambda_init,train_seed,members,dataset,check,eps_255,verdict,value,threshold,n,detail"
)


def write_audit(results, lines):
    (results / "audit.csv").write_text("\n".join([AUDIT_HEAD, *lines, ""]), encoding="utf-8")


@pytest.mark.slow
def test_an_audit_is_shown_with_its_worst_verdicts(tmp_path):
    results = measure(tmp_path / "results")
    lines = [
        "net,quick,0.20-0.25,0,1,digits,gradients,2,pass,0,1,10,",
        "net,quick,0.20-0.25,0,1,digits,gradients,4,fail,33.33333333,1,10,<b>zero</b>",
        "net,quick,0.20-0.25,0,1,digits,restarts,,not run,,,,",
        "net,quick,0.20-0.25,1,1,digits,gradients,2,pass,0,1,10,",
        "net,quick,0.20-0.25,1,1,cifar10,gradients,2,fail,0,1,10,",
    ]
    write_audit(results, lines)
    page.write([results], tmp_path / "report")
    text = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert cells_of(text, 'class="verdicts"') == [
        ["net seed 0", "fail(n=10 eps=2,4 checks=1/14)", "fail", "not run"],
        ["net seed 1", "partial(n=10 eps=2 checks=1/14)", "pass", ""],
    ]
    assert ">33.33</td>" in text
    assert "&lt;b&gt;zero&lt;/b&gt;" in text
    assert (tmp_path / "report" / "audit.csv").read_text().count("\n") == 5  # without the other dataset's


@pytest.mark.slow
def test_checkpoints_of_two_recipes_are_told_apart_in_an_audit(tmp_path):
    results = measure(tmp_path / "results")
    lines = [
        f"{model},{recipe},,0,1,digits,gradients,2,{said},0,1,10,"
        for model, recipe, said in (
            ("net", "quick", "pass"),
            ("net", "paper", "warn"),
            ("b", "quick", "warn"),
        )
    ]
    write_audit(results, lines)
    text = page.write([results], tmp_path / "report").read_text(encoding="utf-8")
    assert [row[0] for row in cells_of(text, 'class="verdicts"')] == [
        "net seed 0@quick",
        "net seed 0@paper",
        "b seed 0",
    ]
    assert text.count("net seed 0@paper") > 1  # in the remarks, too


@pytest.mark.slow
def test_audits_of_older_weights_are_told_apart(tmp_path):
    results = measure(tmp_path / "results")
    head, lines = AUDIT_HEAD.replace("model", "model,weights_sha256"), []
    for weights, said in (("a" * 64, "fail"), ("b" * 64, "pass"), ("", "warn")):
        lines.append(f"net,{weights},quick,,0,1,digits,gradients,2,{said},0,1,10,")
    (results / "audit.csv").write_text("\n".join([head, *lines, ""]), encoding="utf-8")
    text = page.write([results], tmp_path / "report").read_text(encoding="utf-8")
    assert [(row[0], row[2]) for row in cells_of(text, 'class="verdicts"')] == [
        ("net seed 0, weights aaaaaaaaaaaa", "fail"),
        ("net seed 0, weights bbbbbbbbbbbb", "pass"),
        ("net seed 0, weights not recorded", "warn"),
    ]


@pytest.mark.slow
def test_what_passes_or_is_open_in_an_audit_is_folded(tmp_path):
    results = measure(tmp_path / "results")
    verdicts = {"gradients": "pass", "restarts": "open", "one_step": "warn"}
    lines = [f"net,quick,,0,1,digits,{check},2,{said},0,1,10,{check}!" for check, said in verdicts.items()]
    write_audit(results, lines)
    text = page.write([results], tmp_path / "report").read_text(encoding="utf-8")
    audit = re.search(r'<section id="audit">(.*?)</section>', text, re.DOTALL)[1]
    in_full = re.sub(r"<details>.*?</details>", "", audit, flags=re.DOTALL)
    assert "one_step!" in in_full
    assert "net seed 0: <span" in in_full
    folded = re.findall(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", audit, re.DOTALL)
    assert [name for name, _ in folded] == [
        "Open: 1 check",
        "Verdict of each check, the worst over all radii",
    ]
    assert "restarts!" in folded[0][1]
    assert "restarts!" not in in_full
    assert Page(text).faults == []


def test_an_unreadable_audit_is_an_error(tmp_path):
    (tmp_path / "audit.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="is not an audit: it lacks check"):
        provenance.audits([tmp_path], "digits")


@pytest.mark.exhaustive
def test_the_claims_stand_on_cifar_alone(tmp_path):
    results = measure(tmp_path / "results", ("in_resnet20", "preact_resnet20"), dataset="cifar10")
    page.write([results], tmp_path / "report")
    text = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "In-ResNet and λ-In-ResNet beat ResNet under noise, on CIFAR-10 by more than 15 points" in text
    claims = pd.read_csv(tmp_path / "report" / "claims.csv")
    assert set(claims["source"]) == {"paper", "measured"}
    assert (tmp_path / "report" / "paper.csv").is_file()


@pytest.mark.exhaustive
def test_figures_drawn_before_are_images_in_the_page(tmp_path):
    results, figures = measure(tmp_path / "results"), tmp_path / "figures"
    figures.mkdir()
    (figures / "landscape_plane_2.svg").write_text('<svg><script>alert("x")</script></svg>')
    page.write([results], tmp_path / "report", figures=figures)
    found = Page((tmp_path / "report" / "index.html").read_text(encoding="utf-8"))
    ((image, _),) = found.all("img")
    assert image["src"].startswith("data:image/svg+xml;base64,")
    assert "predicted class around a test image" in image["alt"]
    with pytest.raises(UserError, match="no SVG figures"):
        page.write([results], tmp_path / "report", figures=tmp_path)


@pytest.mark.exhaustive
def test_figures_of_another_dataset_are_refused_and_of_other_checkpoints_labelled(tmp_path):
    results, figures = measure(tmp_path / "results"), tmp_path / "figures"
    figure = robustness.improvement_figure(
        pd.DataFrame([{"entry": "net ×2", "column": "clean", "improvement": 1.0}])
    )
    with Store(results, read_only=True) as store:
        (weights, *_) = {
            row["weights_sha256"]
            for row in (s.row for s in scores(store.plans()[0], store))
            if row["members"] == 1
        }
    style.save(
        figure, figures / "coefficients", FigureOrigin("digits", {"net": weights, "old": "0" * 64}, 64)
    )
    style.save(figure, figures / "mine")
    text = page.write([results], tmp_path / "report", figures=figures).read_text(encoding="utf-8")
    assert (
        "act(λ) over depth. Data set digits, n = 64 images; net, old. "
        "Not among the single models of this report: old.</figcaption>" in text
    )
    assert "mine. The file does not record its source" in text
    style.save(figure, figures / "other", FigureOrigin("cifar10", {"net": weights}))
    with pytest.raises(UserError, match=r"other.svg is for cifar10, but the report is for digits: remove it"):
        page.write([results], tmp_path / "report", figures=figures)


def captions_of(results, figures):
    """What a report says about the figures in a folder, by their names."""
    text = page.write([results], results.parent / "report", figures=figures).read_text(encoding="utf-8")
    captions = re.findall("<figcaption>(.*?)</figcaption>", text[text.index('id="figures"') :], re.DOTALL)
    return dict(zip(sorted(path.stem for path in figures.glob("*.svg")), captions, strict=True))


@pytest.mark.slow
def test_every_figure_that_a_command_draws_has_a_caption_whatever_its_name(command, tiny_zoo, tmp_path):
    results = measure(tmp_path / "results")
    on_cpu = ("--zoo", tiny_zoo, "--models", "in_resnet14", "--device", "cpu", "--n", 1)
    asked = {
        "coefficients": ("plot", "coefficients", "in_resnet20.digits_digits_seed0"),
        "landscape": ("plot", "landscape", *on_cpu, "--points", 3, "--sample", "0,12"),
        "curve": ("plot", "curve", results),
        "stability": ("stability", *on_cpu, "--seeds", "0,", "--growth-n", 1),
        "classes_pgd_2": ("leaderboard", "classes", results, "--column", "pgd_2"),
    }
    usual, renamed = tmp_path / "usual", tmp_path / "renamed"
    for name, words in asked.items():
        assert command(*words, "-o", usual)[0] == 0
        assert command(*words, "-o", renamed / f"my_{name}.svg")[0] == 0
    captions = captions_of(results, usual)
    assert list(captions) == [
        *("classes_pgd_2", "coefficients", "coefficients_training", "curve", "landscape_line"),
        *("landscape_plane_0", "landscape_plane_12", "stability", "stability_growth"),
    ]
    assert not [name for name, caption in captions.items() if caption.startswith(f"{name}.")]
    assert len(set(captions.values())) == len(captions) - 1  # the two planes have the same
    assert captions_of(results, renamed) == {f"my_{name}": caption for name, caption in captions.items()}
    for path in usual.glob("*.svg"):  # as before they said it themselves
        older, changed = re.subn(r', "shows": ".*?"(?=\})', "", path.read_text(encoding="utf-8"))
        assert changed == 1
        path.write_text(older, encoding="utf-8")
    (usual / "classes_pgd_2.svg").unlink()
    del captions["classes_pgd_2"]
    assert captions_of(results, usual) == captions


def test_captions_name_dataset_checkpoints_and_n(report):
    _, text = report
    captions = re.findall("<figcaption>(.*?) <span", text)
    assert len(captions) >= 2
    for caption in captions:
        assert (
            "Data set digits, n = 10 test images; net @quick (train seeds 0, 1, 2), &lt;script&gt;" in caption
        )


def test_leaderboard_files_alone_make_a_report(tmp_path):
    board = gather([measure(tmp_path / "results")])[0]
    (tmp_path / "board.csv").write_text(export.to_csv(board), encoding="utf-8")
    page.write([tmp_path / "board.csv"], tmp_path / "report")
    text = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert len(cells_of(text)) == 2
    assert "results.csv" not in text


def test_inline_figures_take_the_pages_colours_and_keep_their_own():
    svg = '<?xml version="1.0"?><svg viewBox="0 0 72 36"><!-- a --><path id="p" style="fill: #ffffff; '
    svg += 'stroke: #d55e00"/><use xlink:href="#p" style="stroke: #000000"/></svg>'
    found = graphics.inline(svg, "fig", "what it shows")
    assert "fill: var(--ground); stroke: #d55e00" in found
    assert 'id="fig-p"' in found
    assert 'href="#fig-p" style="stroke: var(--ink)"' in found
    assert found.startswith('<svg role="img" aria-label="what it shows" viewBox="0 0 72 36"')
    assert "<!--" not in found


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("pgd_0.5", "random start"),
        ("worst_l2_0.5", "L2 radius"),
        ("fog", "five severities"),
        ("fog_3", "severity, 1 to 5"),
        ("mine_2", "Accuracy under this attack"),
        ("members", "single model"),
    ],
)
def test_definitions(column, words):
    assert words in glossary.definition(column, {"fog"})


@pytest.mark.slow
def test_the_command_writes_a_report_without_torch(tmp_path):
    measure(tmp_path / "results")
    script = (
        "import sys; from robust_interp.cli.main import main; "
        f"status = main(['report', {str(tmp_path / 'results')!r}, '-o', {str(tmp_path / 'out')!r}, "
        "'--quiet']); "
        "sys.exit(status or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"wrote {tmp_path / 'out' / 'index.html'}\n"


def test_a_users_mistakes_are_one_line(command, tmp_path):
    results = measure(tmp_path / "results")
    other = measure(tmp_path / "other", ("other",))
    tables = {path: path.read_bytes() for path in other.iterdir()}
    for out in (results, other):
        status, _, err = command("report", results, "-o", out)
        assert (status, err.count("\n")) == (1, 1)
        assert "a report needs a separate folder" in err
    assert {path: path.read_bytes() for path in other.iterdir()} == tables
    (tmp_path / "files").mkdir()
    board = tmp_path / "files" / "leaderboard.csv"
    shutil.copy(Path(__file__).parents[2] / "leaderboards" / "digits.csv", board)
    before = board.read_bytes()
    status, _, err = command("report", board, "-o", tmp_path / "files")
    assert (status, err.count("\n")) == (1, 1)
    assert "a report needs a separate folder" in err
    assert board.read_bytes() == before
    status, _, err = command("report", tmp_path / "nowhere", "-o", tmp_path / "out")
    assert (status, err.count("\n")) == (1, 1)
    (tmp_path / "file").touch()
    status, _, err = command("report", results, "-o", tmp_path / "file" / "out")
    assert (status, err.count("\n")) == (1, 1)
    assert "cannot write" in err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--baseline", "nett"), "unknown baseline 'nett'; did you mean net?"),
        (("--zoo", "nowhere"), "there is no zoo folder nowhere"),
        (("--figures", "nowhere"), "there are no SVG figures in nowhere"),
    ],
    ids=["baseline", "zoo", "figures"],
)
def test_a_refused_report_leaves_an_older_one_as_it_was(command, tmp_path, monkeypatch, options, complaint):
    monkeypatch.chdir(tmp_path)
    results = measure(tmp_path / "results")
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "leaderboard.csv").write_text("older")
    status, _, err = command("report", results, "-o", "report", *options)
    assert status == 1
    one_line(err, complaint)
    assert [path.read_text() for path in (tmp_path / "report").iterdir()] == ["older"]


def test_a_baseline_that_only_a_file_has_is_refused(command, tmp_path):
    status, _, err = command("report", "digits", "-o", tmp_path / "report", "--baseline", "in_resnet20")
    assert status == 1
    one_line(err, "unknown baseline 'in_resnet20'")


# In a real browser

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_browser = pytest.mark.skipif(not BROWSER, reason="there is no Chromium to open the page in")
FLAGS = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
FLAGS += " disable-component-update disable-sync enable-logging=stderr dump-dom"


def opened(path, profile, fragment="", width=800):
    """The page as it stands once its script has run, and what the console said."""
    done = subprocess.run(
        [
            BROWSER,
            *(f"--{flag}" for flag in FLAGS.split()),
            f"--user-data-dir={profile}",
            f"--window-size={width},900",
            f"{path.as_uri()}{fragment}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


def shown(dom):
    """The models of the rows that are to be seen, in their order."""
    body = re.search(r'<table id="board".*?<tbody>(.*?)</tbody>', dom, re.DOTALL)[1]
    rows = re.findall(r"<tr(?![^>]*hidden).*?</tr>", body, re.DOTALL)
    return [Page(re.search(r"<th.*?</th>", row)[0]).elements[0][2] for row in rows]


@pytest.fixture
def three(tmp_path, monkeypatch):
    """A page of three models whose order by clean accuracy is b, c, a."""
    monkeypatch.setattr("robust_interp.results.entries.is_at_chance", lambda clean: False)  # three images
    with Store(tmp_path / "results") as store:
        rights = {"net_a": ("100", "111"), "net_b": ("111", "100"), "other_c": ("110", "110")}
        done = [
            (card(name), perturbation, pattern)
            for name, patterns in rights.items()
            for perturbation, pattern in zip((CLEAN, attack("pgd", 2)), patterns, strict=True)
        ]
        done.append((ensemble(card("net_a", 0), card("net_a", 1)), CLEAN, "110"))
        run(store, done)
    return page.write([tmp_path / "results"], tmp_path / "report")


@pytest.mark.exhaustive
@in_browser
def test_a_view_can_be_linked_to(three, tmp_path):
    dom, console = opened(three, tmp_path / "profile", "#sort=-clean&members=single")
    assert console == []
    assert shown(dom) == ["net_b", "other_c", "net_a"]
    assert re.findall(r'data-column="(\w+)"[^>]*aria-sort="(\w+)"', dom) == [("clean", "descending")]
    assert "3 of 4 entries" in dom
    dom, console = opened(three, tmp_path / "profile", f"#filter={quote('NET ×2')}")
    assert (shown(dom), console) == (["net_a ×2"], [])


@pytest.mark.slow
@in_browser
def test_clicks_and_typing_sort_and_filter(three, tmp_path):
    script = """
      const button = (name) => document.querySelector(`[data-column="${name}"] button`);
      const seen = [];
      const look = (what) => seen.push(what + ": " + [...document.querySelectorAll("#board tbody tr")]
        .filter((row) => row.offsetParent).map((row) => row.querySelector("th").textContent).join(" "));
      const type = (id, value) => {
        const control = document.getElementById(id);
        control.value = value;
        control.dispatchEvent(new Event("input"));
      };
      look("at first");
      button("pgd_2").click(); look("pgd_2");
      button("pgd_2").click(); look("pgd_2 again");
      button("model").click(); look("model");
      type("filter", "net"); look("net");
      type("members", "ensemble"); look("ensembles");
      type("filter", "nothing"); look("nothing");
      seen.push(document.getElementById("shown").textContent, location.hash);
      button("clean").focus(); seen.push(document.activeElement.textContent);
      const seenHere = document.createElement("pre");
      seenHere.textContent = seen.join("\\n");
      document.body.append(seenHere);
    """
    text = three.read_text(encoding="utf-8").replace("</body>", f"<script>{script}</script></body>")
    clicked = three.with_name("clicked.html")
    clicked.write_text(text, encoding="utf-8")
    dom, console = opened(clicked, tmp_path / "profile")
    assert console == []
    assert re.search(r"<pre>(.*?)</pre>", dom, re.DOTALL)[1].split("\n") == [
        "at first: net_a other_c net_b net_a ×2",
        "pgd_2: net_a other_c net_b net_a ×2",
        "pgd_2 again: net_b other_c net_a net_a ×2",  # what is empty stays last
        "model: net_a net_a ×2 net_b other_c",
        "net: net_a net_a ×2 net_b",
        "ensembles: net_a ×2",
        "nothing: ",
        "no entry matches",
        "#sort=model&amp;filter=nothing&amp;members=ensemble",
        "clean",
    ]


@pytest.mark.exhaustive
@in_browser
def test_groups_are_sorted_and_filtered_each_by_itself(two_protocols, tmp_path):
    dom, console = opened(two_protocols, tmp_path / "sorting", "#sort=pgd_2")
    assert console == []
    assert list(groups_of(dom).values()) == [[("2", "net_b"), ("1", "net_a")]] * 3
    dom, console = opened(two_protocols, tmp_path / "filtering", "#filter=worst")
    hidden = re.findall(
        r"<tbody( hidden[^>]*)?>", re.search(r'<table id="board".*?</table>', dom, re.DOTALL)[0]
    )
    assert [bool(mark) for mark in hidden] == [True, False, False]
    assert "4 of 6 entries" in dom
    assert console == []


@pytest.mark.exhaustive
@pytest.mark.slow
@in_browser
@pytest.mark.parametrize(
    ("width", "medium"), [(1400, "screen"), (390, "screen"), (1031, "print")]
)  # 1031: A4 landscape between its margins
def test_names_of_any_length_stay_in_their_cells(width, medium, tmp_path):
    """And the page no wider than the window, and no text squeezed into a column of single letters."""
    names = ["package.module:factory+" * 12, "x" * 255, "net"]
    results = measure(tmp_path / "results", names)
    line = "quick,0.20-0.25,0,1,digits,gradients,2,warn,1,1,10,detail"
    write_audit(results, [f"{name},{line}" for name in names])
    with Store(results) as store:
        run(store, [(card(name, recipe="recipe_" * 40), CLEAN, first(9)) for name in names])
    script = """
      const found = [];
      const visible = document.documentElement.scrollWidth - document.documentElement.clientWidth;
      if (visible > 0) found.push("the page is too wide by " + visible);
      const ink = (node) => {
        const range = document.createRange();
        range.selectNodeContents(node);
        return range.getBoundingClientRect();
      };
      let seen = 0;
      for (const cell of document.querySelectorAll("td, th")) {
        const box = cell.getBoundingClientRect(), text = ink(cell), said = cell.textContent;
        const inside = box.left - 1 <= text.left && text.right <= box.right + 1;
        if (said && !inside) found.push("sticks out: " + said);
        if (said.length > 200 && !cell.matches(".group *")) {
          seen += 1;
          if (text.width < 70) found.push("squeezed: " + said);
          if (text.width > 400) found.push("sprawls: " + said);
        }
      }
      const told = document.createElement("pre");
      told.textContent = found.join("\\n") || "all well with " + (seen > 9);
      document.body.append(told);
    """
    path = page.write([results], tmp_path / "report")
    text = path.read_text(encoding="utf-8").replace("</body>", f"<script>{script}</script></body>")
    if medium == "print":
        text = text.replace("@media print", "@media all")
    path.write_text(text, encoding="utf-8")
    dom, console = opened(path, tmp_path / "profile", width=width)
    assert console == []
    assert re.search(r"<pre>(.*?)</pre>", dom, re.DOTALL)[1] == "all well with true"


@pytest.mark.slow
@in_browser
def test_hostile_names_run_nothing_and_nothing_is_complained_of(report, tmp_path):
    folder, _ = report
    dom, console = opened(folder / "index.html", tmp_path / "profile")
    assert console == []
    assert HOSTILE in shown(dom)


def test_published_rows_of_several_threat_models_are_curves_of_their_own():
    board, *_ = gather([Path(__file__).parents[2] / "leaderboards" / "robustbench.csv"], "cifar10")
    table = curves.published(board, {"Rice2020Overfitting"}, {("autoattack", False)})
    (entry,) = set(table["entry"])
    assert entry == "Rice2020Overfitting Linf (robustbench)"
    linf = table.set_index(["series", "x"])["accuracy"]
    # RobustBench's page: 85.34 % clean, 53.42 % under AutoAttack at 8/255
    assert (linf["clean", 0], linf["autoattack", 8]) == (85.34, 53.42)


def test_only_published_rows_that_are_drawn_are_in_legend_and_caption(tmp_path):
    results = measure(tmp_path / "results", dataset="cifar10")  # under fgsm and pgd, which robustbench lacks
    text = page.write([results, Path("robustbench")], tmp_path / "report").read_text(encoding="utf-8")
    assert "Grey lines" not in text


def test_captions_have_the_n_of_what_is_drawn(tmp_path):
    with Store(tmp_path / "results") as store:
        net = card("net")
        plan = measured(store, [(net, made, first(8)) for made in (CLEAN, pgd(2))])
        strong = measured(store, [(net, made, first(3, 5)) for made in (CLEAN, pgd(2))], "worst")
        store.put_plan(replace(plan, strong=strong))
        run(store, [(card("other"), CLEAN, first(15, 20))])  # without a curve
    text = page.write([tmp_path / "results"], tmp_path / "report").read_text(encoding="utf-8")
    assert "n = 10 test images" in text
    assert "n = 5, 10" not in text
    assert "n = 10, 20 test images;" not in text
