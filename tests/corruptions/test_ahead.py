"""Worker processes that make images ahead: the same images, and none left behind."""

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial

import numpy as np
import pytest
from support.cifar_c import fake_cifar10, some_images

from robust_interp.corruptions import CORRUPTIONS, ahead, corrupt, workers
from robust_interp.corruptions.ahead import Maker, Wanted
from robust_interp.corruptions.cache import Cache
from robust_interp.corruptions.workers import Worker, WorkerGone

N = 20
WANTED = [Wanted(name, severity, 0, N) for name in ("shot_noise", "snow") for severity in (1, 4)]


@pytest.fixture
def eager(monkeypatch):
    """Workers start after the first block, in blocks of four images."""
    monkeypatch.setattr(ahead, "TRIED_FOR", 0.0)
    monkeypatch.setattr(ahead, "WORTH_IT", 0.0)
    monkeypatch.setattr(ahead, "MOST_IMAGES", 4)


class Counting(Worker):
    """Counts the blocks that workers make."""

    blocks, alive = 0, 0

    def __init__(self):
        super().__init__()
        Counting.alive += 1

    def make(self, *request):
        Counting.blocks += 1
        return super().make(*request)


@pytest.fixture
def counted(monkeypatch):
    Counting.blocks = Counting.alive = 0
    monkeypatch.setattr(ahead, "Worker", Counting)
    return Counting


def expected(dataset, wanted, seed):
    return corrupt(dataset.images, wanted.name, wanted.severity, range(N), seed)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True])
def test_images_made_ahead_are_those_made_here(eager, counted, tmp_path, kept):
    dataset = fake_cifar10(N)
    maker = Maker(dataset, 5, Cache(tmp_path) if kept else None)
    with maker.prefetch(WANTED, workers=1):
        maker.images("shot_noise", 1, 0, 4)
        while not counted.blocks:  # it starts
            time.sleep(0.01)
        for wanted in WANTED:
            for start, stop in ((0, 3), (3, 14), (14, N)):
                found = maker.images(wanted.name, wanted.severity, start, stop)
                assert np.array_equal(found, expected(dataset, wanted, 5)[start:stop])
    assert counted.alive == 1


def test_few_images_start_no_worker(counted):
    maker = Maker(fake_cifar10(N), 0)
    with maker.prefetch(WANTED, workers=2):
        for wanted in WANTED:
            maker.images(wanted.name, wanted.severity, 0, N)
    assert not counted.alive


def test_what_is_on_disk_starts_no_worker(eager, counted, tmp_path):
    dataset = fake_cifar10(N)
    first = Maker(dataset, 0, Cache(tmp_path))
    for wanted in WANTED:
        first.images(wanted.name, wanted.severity, 0, N)
    again = Maker(dataset, 0, Cache(tmp_path))
    with again.prefetch(WANTED, workers=2):
        for wanted in WANTED:
            assert np.array_equal(
                again.images(wanted.name, wanted.severity, 0, N), expected(dataset, wanted, 0)
            )
    assert not counted.alive


def test_a_block_is_made_as_far_as_it_will_be_asked_for(monkeypatch):
    made = []

    def counting(images, name, severity, ids, seed):
        made.append(len(images))
        return corrupt(images, name, severity, ids, seed)

    monkeypatch.setattr(ahead, "corrupt", counting)
    maker = Maker(fake_cifar10(N), 0)
    with maker.prefetch([Wanted("fog", 1, 0, 12)], workers=0):
        for start in range(0, 12, 3):
            maker.images("fog", 1, start, start + 3)
    assert made == [12]


@pytest.mark.slow
def test_workers_end_on_an_exception(eager, monkeypatch):
    started = []
    monkeypatch.setattr(ahead, "Worker", lambda: started.append(Worker()) or started[0])
    maker = Maker(fake_cifar10(N), 0)

    def run():
        with maker.prefetch(WANTED, workers=1):
            maker.images("shot_noise", 1, 0, 4)
            while not started:
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    with pytest.raises(WorkerGone):
        started[0].make(some_images(1), "fog", 1, 0, 0)


@pytest.mark.slow
def test_a_worker_that_dies_is_done_without(eager, counted, monkeypatch):
    monkeypatch.setattr(Counting, "make", lambda self, *request: self.end() or Worker.make(self, *request))
    dataset, maker = fake_cifar10(N), Maker(fake_cifar10(N), 0)
    with maker.prefetch(WANTED, workers=1):
        maker.images("shot_noise", 1, 0, 4)
        while not counted.alive:  # it starts
            time.sleep(0.01)
        for wanted in WANTED:
            assert np.array_equal(
                maker.images(wanted.name, wanted.severity, 0, N), expected(dataset, wanted, 0)
            )
    assert not counted.blocks


def test_where_no_process_can_be_started_images_are_made_here(eager, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    dataset, maker = fake_cifar10(N), Maker(fake_cifar10(N), 0)
    with maker.prefetch(WANTED, workers=2):
        for wanted in WANTED:
            assert np.array_equal(
                maker.images(wanted.name, wanted.severity, 0, N), expected(dataset, wanted, 0)
            )


@pytest.mark.slow
def test_workers_of_other_code_are_not_taken(monkeypatch):
    monkeypatch.setattr(workers, "made_by", lambda: "other code")
    with pytest.raises(WorkerGone):
        Worker()


def test_a_plug_in_is_made_here(eager, counted, fresh):
    CORRUPTIONS.add("plain", lambda image, severity, rng: image, origin="a test")
    maker = Maker(fake_cifar10(N), 0)
    with maker.prefetch([Wanted("plain", 1, 0, N)], workers=1):
        assert np.array_equal(maker.images("plain", 1, 0, N), fake_cifar10(N).images)
    assert not counted.alive
    CORRUPTIONS.remove("plain")


def test_a_request_that_fails_is_answered_and_the_next_one_too():
    clean = some_images(1)
    request = {"severity": 1, "start": 0, "seed": 0, "shape": clean.shape, "dtype": "uint8"}
    requests = b"".join(
        json.dumps({**request, "name": name}).encode() + b"\n" + clean.tobytes()
        for name in ("unknown", "fog")
    )
    answers = io.BytesIO()
    workers.serve(io.BytesIO(requests), answers)
    _, refused, done, body = answers.getvalue().split(b"\n", 3)
    assert (refused, done) == (b'{"done": false}', b'{"done": true}')
    assert np.array_equal(
        np.frombuffer(body, np.uint8).reshape(clean.shape), corrupt(clean, "fog", 1, [0], 0)
    )


SCRIPT = """
    # No guard against being imported: a worker does not run what started it.
    import time
    import numpy as np
    from robust_interp import data
    from robust_interp.corruptions import ahead
    print("run", flush=True)
    ahead.TRIED_FOR = ahead.WORTH_IT = 0
    ahead.MOST_IMAGES = 1

    class Telling(ahead.Worker):
        def __init__(self):
            super().__init__()
            print(self.pid, flush=True)

    ahead.Worker = Telling
    images = np.zeros((40, 3, 224, 224), np.uint8)
    maker = ahead.Maker(data.from_arrays(images, np.zeros(40, int), 1), 0)
    with maker.prefetch([ahead.Wanted("zoom_blur", 5, 0, 40)], 1):
        maker.images("zoom_blur", 5, 0, 1)
        time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs POSIX signals")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_what_started_it(tmp_path, how):
    """Ctrl-C reaches the whole group of a terminal; kill -9 leaves no time for anything."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    process = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(
            signal.signal, signal.SIGINT, signal.SIG_DFL
        ),  # a shell's background has it ignored
        cwd=tmp_path,
    )
    assert process.stdout.readline() == "run\n"
    worker = int(process.stdout.readline())
    os.killpg(process.pid, how)
    out, err = process.communicate(timeout=60)
    assert "run" not in out
    assert err.count("Traceback") <= 1  # of the script itself: the worker is silent
    deadline = time.time() + 30
    while is_running(worker) and time.time() < deadline:
        time.sleep(0.05)
    assert not is_running(worker)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
