"""Write a training curve as TensorBoard events: a run per seed, a step per epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from robust_interp.core.errors import UserError
from robust_interp.core.extras import install
from robust_interp.training.trainer import Status


@contextmanager
def curve_writer(folder: Path) -> Iterator[Callable[[Status], None]]:
    """Yield a function that is called with each status of a training, and writes finished epochs to `folder`.

    Scalars: ``loss``, ``accuracy`` (%), ``lr``, ``images_per_second`` and ``lambda/<block>``.

    Raises:
        UserError: if TensorBoard is not installed, or the folder cannot be written or is removed during
            training.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            f"--tensorboard needs an extra package: {install('tensorboard')} ({error})"
        ) from error
    try:
        writer = SummaryWriter(str(folder))
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error}") from error

    def report(status: Status) -> None:
        if status.line is None:
            return
        if not folder.is_dir():  # TensorBoard would keep writing to a deleted file
            raise UserError(f"cannot write {folder}: it was removed meanwhile")
        for name, value in scalars(status.line).items():
            writer.add_scalar(name, value, status.line["epoch"])
        writer.flush()

    with writer:
        yield report


def scalars(line: dict) -> dict[str, float]:
    """Return the numbers of one epoch's record by TensorBoard tag."""
    numbers = {name: value for name, value in line.items() if name not in ("epoch", "lambda")}
    return numbers | {f"lambda/{block}": value for block, value in line["lambda"].items()}
