"""The README's length, links that lead somewhere, and reasons for what is not run."""

import subprocess
import sys

import pytest
from support.markdown import BLOCKS, NOT_RUN, PAGES, README, ROOT, anchors, links, tables
from support.prerequisites import needed

SETUP = (
    "python3 -m venv .venv && . .venv/bin/activate && pip install -e . && robust-interp bench",
    "pip install -e '.[test]' && pytest",
)


def test_the_readme_has_at_most_900_words():
    assert len(README.read_text(encoding="utf-8").split()) <= 900


@pytest.mark.parametrize("line", SETUP)
def test_the_set_up_lines_stand_alone_in_a_block(line):
    assert line + "\n" in [block.text for block in BLOCKS if block.place.startswith("README")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


def test_what_is_not_run_says_why():
    written = sum(len(NOT_RUN.findall(page.read_text(encoding="utf-8"))) for page in PAGES)
    in_text = sum(len(NOT_RUN.findall(block.text)) for block in BLOCKS)
    reasons = [block.why_not for block in BLOCKS if block.why_not is not None]
    assert all(reasons), "a comment gives no reason"
    assert len(reasons) == written - in_text, "a comment does not stand directly above a block"


def test_the_index_lists_every_page():
    index = ROOT / "docs" / "index.md"
    assert set(links(index)) == {page.name for page in PAGES if page not in (README, index)}


def test_the_table_of_rooms_lists_every_module():
    rooms = tables(ROOT / "docs" / "development.md")["Rooms"]
    listed = {room.strip("`"): sorted(modules.split(", ")) for room, _, modules in rooms}
    package = ROOT / "robust_interp"
    found = {
        room.parent.name: sorted(path.stem for path in room.parent.glob("*.py") if path != room)
        for room in package.glob("*/__init__.py")
    }
    assert listed == found


def test_pictures_are_small():
    pictures = list((ROOT / "docs" / "images").iterdir())
    assert pictures
    assert [each.name for each in pictures if each.stat().st_size >= 250_000] == []


@pytest.mark.slow
def test_mkdocs_builds_without_a_warning(tmp_path):
    needed("mkdocs")
    options = ["--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    command = [sys.executable, "-m", "mkdocs", "build", *options]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
