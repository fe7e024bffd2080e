import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from robust_interp.core.errors import UserError
from robust_interp.core.files import lock_file, new_file, new_folder, write_bytes, write_text


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def half_a_file(path, error):
    with new_file(path) as part:
        part.write_text("ne")
        raise error


def half_a_folder(path, error):
    with new_folder(path) as part:
        (part / "a.txt").write_text("a")
        raise error


def test_text_is_written_as_utf_8_with_its_line_ends(tmp_path):
    write_text(tmp_path / "a.txt", "λ\r\nε\n")
    assert (tmp_path / "a.txt").read_bytes() == b"\xce\xbb\r\n\xce\xb5\n"
    assert names(tmp_path) == ["a.txt"]


def test_bytes_replace_what_was_there(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"a longer one that was there before")
    write_bytes(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert names(tmp_path) == ["a.bin"]


def test_until_it_is_finished_the_old_file_is_there_and_the_new_one_is_not(tmp_path):
    path = tmp_path / "figure.png"
    path.write_text("old")
    with new_file(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
        assert part.parent == tmp_path  # on the same disk
        assert part.name.startswith(".")
        assert part.suffix == ".png"  # what writes it may go by that
    assert path.read_text() == "new"
    assert names(tmp_path) == ["figure.png"]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_what_interrupts_the_writing_leaves_the_old_file_alone(tmp_path, kind):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(kind):
        half_a_file(path, kind)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_full_disk_is_one_line_and_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(UserError) as refusal:
        half_a_file(path, OSError(28, "No space left on device"))
    assert str(refusal.value) == f"cannot write {path}: No space left on device"
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize(
    "write", [lambda path: write_text(path, ""), lambda path: new_folder(path).__enter__()]
)
def test_below_a_file_nothing_can_be_written_and_that_is_one_line(tmp_path, write):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*below") as refusal:
        write(tmp_path / "file" / "below")
    assert "\n" not in str(refusal.value)
    assert names(tmp_path) == ["file"]


def test_a_writer_that_writes_nothing_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot write"), new_file(tmp_path / "a.txt"):
        pass
    assert names(tmp_path) == []


def test_a_folder_appears_whole(tmp_path):
    folder = tmp_path / "above" / "folder"
    with new_folder(folder) as part:
        (part / "a.txt").write_text("a")
        (part / "inner").mkdir()
        (part / "inner" / "b.txt").write_text("b")
        assert not folder.exists()
        assert part.name.startswith(".part")
    assert names(tmp_path) == ["above", "above/folder", "above/folder/a.txt"] + [
        f"above/folder/inner{rest}" for rest in ("", "/b.txt")
    ]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_what_interrupts_the_filling_leaves_no_folder(tmp_path, kind):
    with pytest.raises(kind):
        half_a_folder(tmp_path / "folder", kind)
    assert names(tmp_path) == []


def test_a_folder_that_holds_something_is_refused_and_kept(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old.txt").write_text("old")
    with pytest.raises(UserError, match="cannot write"), new_folder(tmp_path / "folder") as part:
        (part / "new.txt").write_text("new")
    assert names(tmp_path) == ["folder", "folder/old.txt"]


def test_what_a_killed_process_of_the_same_id_left_is_no_part_of_the_folder(tmp_path):
    with new_folder(tmp_path / "one") as part:
        (part / "a.txt").write_text("a")
        left = part.name.replace("one", "two")
    (tmp_path / left).mkdir()
    (tmp_path / left / "half.txt").write_text("half")
    with new_folder(tmp_path / "two") as part:
        (part / "b.txt").write_text("b")
    assert names(tmp_path) == ["one", "one/a.txt", "two", "two/b.txt"]


def _killed_while_writing(folder):
    with new_file(folder / "a.txt") as part:
        part.write_text("ne")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    process = multiprocessing.get_context("fork").Process(target=_killed_while_writing, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["a.txt"]


def _killed_while_filling(folder):
    with new_folder(folder / "net") as part:
        (part / "a.txt").write_text("a")
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("kill", [_killed_while_writing, _killed_while_filling])
def test_what_a_killed_process_left_is_removed_by_the_next_that_writes_there(tmp_path, kill):
    process = multiprocessing.get_context("fork").Process(target=kill, args=(tmp_path,))
    process.start()
    process.join()
    assert [name for name in names(tmp_path) if name.startswith(".part")]
    write_text(tmp_path / "b.txt", "b")
    assert names(tmp_path) == ["b.txt"]


def test_what_is_being_written_is_not_taken_for_left_over(tmp_path):
    with new_file(tmp_path / "a.txt") as file, new_folder(tmp_path / "folder") as folder:
        file.write_text("a")
        (folder / "b.txt").write_text("b")
        write_text(tmp_path / "c.txt", "c")
    assert names(tmp_path) == ["a.txt", "c.txt", "folder", "folder/b.txt"]


def test_a_link_with_a_temporary_name_leads_to_no_removal(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a.txt").write_text("a")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".part1.x").symlink_to(tmp_path / "kept")
    write_text(tmp_path / "out" / "b.txt", "b")
    assert (tmp_path / "kept" / "a.txt").read_text() == "a"


def test_an_empty_text_is_written(tmp_path):
    write_text(tmp_path / "a.txt", "")
    assert (tmp_path / "a.txt").read_bytes() == b""


def _pipe(path):
    os.mkfifo(path)


@pytest.mark.parametrize(("make", "said"), [(Path.mkdir, "a folder of that name"), (_pipe, "no file")])
def test_what_is_no_file_is_not_replaced(tmp_path, make, said):
    make(tmp_path / "fig.svg")
    with pytest.raises(UserError, match=f"cannot write .*fig.svg: there is .*{said}"):
        write_text(tmp_path / "fig.svg", "x")
    assert names(tmp_path) == ["fig.svg"]


def test_a_folder_that_was_removed_meanwhile_is_said(tmp_path):
    (tmp_path / "out").mkdir()
    writing = new_file(tmp_path / "out" / "a.txt")
    part = writing.__enter__()
    part.unlink()
    part.parent.rmdir()
    with pytest.raises(UserError, match=r"cannot write .*a.txt: there is no folder .*out, or no longer"):
        writing.__exit__(None, None, None)


def test_of_two_that_lock_a_file_one_has_it(tmp_path):
    path = tmp_path / "x.lock"
    path.touch()  # of a killed process
    with lock_file(path) as first, lock_file(path) as second:
        assert (first, second) == (True, False)
    with lock_file(path) as third:
        assert third
    assert names(tmp_path) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no flock")
def test_a_lock_that_another_process_only_looks_at_can_be_had(tmp_path, monkeypatch):
    import fcntl

    path = tmp_path / "x.lock"
    looking = os.open(path, os.O_RDONLY | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_EX)
    monkeypatch.setattr("time.sleep", lambda seconds: os.close(looking))
    with lock_file(path) as is_ours:
        assert is_ours


def test_a_lock_that_is_waited_for_is_had_once_it_is_released(tmp_path):
    path, order = tmp_path / "a.lock", []

    def waits():
        with lock_file(path, wait=True) as is_ours:
            order.append(("later", is_ours))

    with lock_file(path):
        other = threading.Thread(target=waits)
        other.start()
        other.join(0.2)
        order.append(("first", other.is_alive()))
    other.join()
    assert order == [("first", True), ("later", True)]
    assert names(tmp_path) == []


def test_processes_of_one_id_never_write_to_the_same_temporary_name(tmp_path, monkeypatch):
    """As in two containers that share a folder."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    with new_file(tmp_path / "a.csv") as mine, new_file(tmp_path / "a.csv") as theirs:
        mine.write_text("mine")
        theirs.write_text("theirs")
        assert mine.read_text() == "mine"
    assert (tmp_path / "a.csv").read_text() == "mine"  # the last to finish
    assert names(tmp_path) == ["a.csv"]
