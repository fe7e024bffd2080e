"""What the package writes takes its place in one step: only `core.files` opens a file to write."""

import ast
import re
from pathlib import Path

import pytest

import robust_interp

PACKAGE = Path(robust_interp.__file__).parent
WRITERS = {
    "write_text",
    "write_bytes",
    "savefig",
    "savez",
    "savez_compressed",
    "save_file",
    "tofile",
    "touch",
}
COPIES = {"copy", "copy2", "copyfile", "copytree", "move"}  # of shutil
WHOLE = {"new_file", "new_folder", "scratch_folder"}  # within which anything may be written
MODE = re.compile(r"(?=.*[wax+])[rwaxbt+]{1,3}")  # of a file that is opened to write
LEFT = {
    ("core/worker_pool.py", "open"),  # a log, to which lines are added
    ("data/handover.py", "write_bytes"),  # into a temporary folder of its own
    (
        "store/check.py",
        "copyfile",
    ),  # into a scratch folder; and a damaged file beside itself, under a new name
}


def called(call):
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def is_writing(call):
    """Whether a call writes a file past `core.files`, as far as its name and arguments tell."""
    name, given = called(call), [*call.args, *(keyword.value for keyword in call.keywords)]
    if name == "open":
        return any(isinstance(one, ast.Constant) and MODE.fullmatch(str(one.value)) for one in given)
    if name in ("write_text", "write_bytes"):
        return isinstance(call.func, ast.Attribute)  # a method of a path
    if name in COPIES:
        return isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "shutil"
    return name in WRITERS


def found(tree):
    """The names of such calls that do not stand within one of WHOLE."""

    def walk(node, inside):
        if isinstance(node, ast.With):
            heads = {
                called(item.context_expr) for item in node.items if isinstance(item.context_expr, ast.Call)
            }
            inside = inside or bool(heads & WHOLE)
        if isinstance(node, ast.Call) and not inside and is_writing(node):
            yield called(node)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside)

    return list(walk(tree, False))


@pytest.mark.slow
def test_nothing_but_core_files_opens_a_file_to_write():
    writing = set()
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name != "core/files.py":
            writing |= {(name, call) for call in found(ast.parse(path.read_text(encoding="utf-8")))}
    assert writing == LEFT


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("path.write_text('x')", ["write_text"]),
        ("write_text(path, 'x')", []),
        ("open(path, 'wb')", ["open"]),
        ("path.open(mode='a')", ["open"]),
        ("path.open('rb')", []),
        ("with new_file(path) as part:\n    figure.savefig(part)", []),
        ("figure.savefig(path)", ["savefig"]),
    ],
)
def test_what_counts_as_writing(text, caught):
    assert found(ast.parse(text)) == caught
