"""The pages, their fenced blocks, and the commands and links in them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
SHELL = ("", "bash", "sh", "shell", "console")
NOT_RUN = re.compile(r"<!-- not run:(.*)-->")


@dataclass(frozen=True)
class Block:
    """A fenced block; `why_not` is the reason that it is not run, None if it is."""

    place: str
    language: str
    text: str
    why_not: str | None

    def commands(self) -> list[list[str]]:
        """The arguments of each `robust-interp` command in a block of the shell."""
        if self.language not in SHELL:
            return []
        lines = re.sub(r"\\\n", " ", self.text).splitlines()
        parts = [part for line in lines for part in re.split(r"\s&&\s", line.removeprefix("$ "))]
        split = [shlex.split(part, comments=True) for part in parts]
        return [words[1:] for words in split if words[:1] == ["robust-interp"]]


def blocks(page: Path) -> list[Block]:
    lines, found = page.read_text(encoding="utf-8").splitlines(), []
    begin = None
    for at, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if begin is None:
            begin = at
            continue
        above = NOT_RUN.fullmatch(lines[begin - 1].strip())
        why_not = above and above[1].strip()
        text = "\n".join(lines[begin + 1 : at]) + "\n"
        place = f"{page.relative_to(ROOT)}:{begin + 1}"
        found.append(Block(place, lines[begin].removeprefix("```").strip(), text, why_not))
        begin = None
    assert begin is None, f"{page}: a block is not closed"
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]


def without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def links(page: Path) -> list[str]:
    """Targets of the links and pictures on a page that lie in this repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", without_blocks(page)))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """What a link can name on a page: its headings, as the forge and mkdocs write them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(page), flags=re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def cells(line: str) -> list[str]:
    """The cells of a row of a table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def tables(page: Path) -> dict[str, list[list[str]]]:
    """The rows, without the head, of the first table below each heading."""
    found, heading = {}, ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|"):
            found.setdefault(heading, []).append(cells(line))
    return {heading: rows[2:] for heading, rows in found.items()}
