"""A watch that keeps what it is told."""

from robust_interp.benchmark.watch import Watch


class Counting(Watch):
    """Keeps each cell with the number of images that are measured or skipped, and the steps of attacks."""

    def __init__(self):
        self.finished, self.skips, self.steps = [], [], []

    def __call__(self, cell, images):
        self.finished.append((cell, images))

    def skipped(self, cell, images):
        self.skips.append((cell, images))

    def step(self, cell, images):
        self.steps.append((cell, images))
