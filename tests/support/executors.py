"""What workers do in tests, which import this; and an executor that stands in for them."""

import os
import random
import signal
import time
from pathlib import Path


class Doubling:
    """Doubles numbers; what the first try of a task does besides is said by its second part.

    Args:
        folder: Where it is noted which tasks were tried.
    """

    def __init__(self, folder):
        self.folder = Path(folder)

    def __call__(self, task):
        number, what = task
        tries = len(list(self.folder.glob(f"{number}.*")))
        (self.folder / f"{number}.{tries}").touch()
        if what == "always dies" or (what == "dies once" and not tries):
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "is wrong":
            from robust_interp.core.errors import UserError

            raise UserError(f"{number} is wrong")
        return 2 * number


class Waiting:
    """Tells of itself until it is told to stop."""

    def __call__(self, task, told):
        began = time.monotonic()
        while not told.is_to_stop and time.monotonic() < began + 60:
            told([task, "waits"])
            time.sleep(0.02)
        return f"{task} was stopped" if told.is_to_stop else f"{task} was not"


def other_versions():
    return {"robust_interp": "0.0", "torch": "1.0"}


class Several:
    """Stands in for workers: takes some tasks at once, and ends one of them by chance."""

    def __init__(self, worker, seed, size=4, fails=lambda task: False):
        self.worker, self.chance, self.size, self.fails = worker, random.Random(seed), size, fails
        self.at_hand, self.done = [], []
        self.alive = None

    @property
    def has_capacity(self):
        return len(self.at_hand) < self.size

    @property
    def is_busy(self):
        return bool(self.at_hand)

    def submit(self, task):
        self.at_hand.append(task)

    def next_result(self):
        task = self.at_hand.pop(self.chance.randrange(len(self.at_hand)))
        self.done.append(task)
        return task, "it was lost" if self.fails(task) else self.worker.measure(task)
