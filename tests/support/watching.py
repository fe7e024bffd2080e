"""A watch that keeps what it is told."""

from robust_interp.benchmark.watch import Watch


class Counting(Watch):
    """Keeps each cell and the number of its images, in the order of the calls, and the steps of attacks."""

    def __init__(self):
        self.finished, self.steps = [], []

    def __call__(self, cell, images):
        self.finished.append((cell, images))

    def step(self, cell, images):
        self.steps.append((cell, images))
