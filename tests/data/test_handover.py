"""What worker processes hand over in files; a worker or the reader may be killed at any moment."""

import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from robust_interp.core.errors import UserError
from robust_interp.data.batches import without_storages
from robust_interp.data.decoding import Stream
from robust_interp.data.handover import SLOTS, FromWorkers, Sender

LARGE = 300_000  # numbers: many times what a pipe holds


class Numbers:
    """Item i is i, many times."""

    def __len__(self):
        return 6 * SLOTS

    def __getitem__(self, at):
        return np.full(LARGE, at)


class Broken(Numbers):
    def __getitem__(self, at):
        if at == 5:
            raise ValueError("item 5")
        return super().__getitem__(at)


class Killed:
    """Kills the process that writes it."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)
        return Killed, ()


class Frail:
    """Image i is full of i; the worker is killed in the middle of writing image 100 if there is no `file`."""

    shape = (3, 64, 64)

    def __init__(self, file):
        self.file = file

    def __getitem__(self, ids):
        images = np.empty((len(ids), *self.shape), np.uint8)
        images[:] = np.array(ids, np.uint8)[:, None, None, None]
        is_last = 100 in ids and not self.file.exists()
        if is_last:
            self.file.touch()
        return images, np.array(ids, np.uint64), Killed() if is_last else ""


@pytest.fixture(params=["fork", "forkserver"])
def start_method(request):
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.slow
def test_all_is_taken_over_in_order_while_the_files_are_used_again(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    loader = FromWorkers(Numbers(), 2, batch_size=None, persistent_workers=True)
    for _ in range(2):  # the second time, workers are still busy with what comes after the third item
        begun = iter(loader)
        assert [int(next(begun)[-1]) for _ in range(3)] == [0, 1, 2]
    assert [(len(item), *set(item)) for item in loader] == [(LARGE, at) for at in range(6 * SLOTS)]
    (folder,) = tmp_path.iterdir()
    assert {path.name for path in folder.iterdir()} == {f"{w}-{s}" for w in (0, 1) for s in range(SLOTS)}
    del loader, begun
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_no_folder_is_left_however_early_reading_ends(monkeypatch, tmp_path):
    """Workers are still writing what comes next."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for ends_after in range(40):
        stream = Stream(Frail(Path(__file__)), 256, workers=2)
        stream.read(np.arange(64 * (ends_after % 4 + 1)))
        del stream
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_an_error_ends_the_workers_although_its_traceback_is_kept(persistent):
    """Else workers that are forked later would have copies of the iterator, whose destructors fail there."""
    before = multiprocessing.active_children()
    with pytest.raises(ValueError, match="item 5") as caught:
        list(FromWorkers(Broken(), 2, batch_size=None, persistent_workers=persistent))
    assert caught.tb is not None
    assert multiprocessing.active_children() == before


def test_a_message_fits_into_a_pipe_whatever_is_sent(tmp_path):
    message = Sender(tmp_path, None)(np.zeros(LARGE))
    assert len(pickle.dumps(message)) < 512  # POSIX: written at once or not at all


@pytest.mark.slow
def test_a_part_of_a_tensor_is_written_alone(tmp_path):
    whole = torch.zeros(1000, 1000)
    name, _ = Sender(tmp_path, without_storages)([{"image": whole[3]}, 1])
    content = (tmp_path / name).read_bytes()
    assert len(content) < 20_000  # a row has 4,000 bytes
    assert torch.equal(pickle.loads(content)[0]["image"], whole[3])


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_writes_ends_a_read_in_any_thread(start_method, tmp_path):
    stream = Stream(Frail(tmp_path / "killed"), 200, workers=2)
    found = []

    def reading():
        for _ in range(2):  # after the error, new workers are started
            try:
                found.append(stream.read(np.arange(200))[1].tolist())
            except UserError as error:
                found.append(str(error))

    thread = threading.Thread(target=reading, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    told, whole = found
    assert told.startswith("a process that decodes images has ended (DataLoader worker (pid")
    assert told.endswith("use fewer with --decode-workers")  # it had begun: no hint about scripts
    assert whole == list(range(200))


@pytest.mark.slow
def test_a_folder_that_is_gone_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stream = Stream(Frail(Path(__file__)), 200, workers=1)
    stream.read(np.arange(3))
    (folder,) = tmp_path.iterdir()
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"cannot use the temporary folder .*: No such file.*TMPDIR"):
        stream.read(np.arange(3, 200))
    assert stream.read(np.arange(3))[1].tolist() == [0, 1, 2]


ORPHANED = """
import os, signal, sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
from test_handover import Frail
from pathlib import Path
from robust_interp.data.decoding import Stream
stream = Stream(Frail(Path(sys.argv[1])), 200, workers=2)
stream.read(np.arange(3))
time.sleep(1)
print(*(worker.pid for worker in stream._loader._loader._iterator._workers), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_workers_end_with_a_reader_that_is_killed(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # nobody removes the folder
    command = [sys.executable, "-c", ORPHANED, str(Path(__file__).parent)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) == 2
    end = time.monotonic() + 60
    while any(map(_is_running, workers)):
        assert time.monotonic() < end
        time.sleep(0.2)


def _is_running(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
