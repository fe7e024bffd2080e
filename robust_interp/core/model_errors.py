"""Errors of a user's model, which may raise anything in any pass."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from robust_interp.core.errors import UserError
from robust_interp.core.memory import is_out_of_memory
from robust_interp.core.sources import INSTALLED
from robust_interp.core.texts import first_line_of
from robust_interp.core.torch_internals import dead_worker


@contextmanager
def reported_for(model: object) -> Iterator[None]:
    """Turn what a model raises in the context into a UserError with its name.

    A lack of memory, and a dead worker of the data set, pass.

    Args:
        model: The model; its attribute `name` is used if it has one.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error) or dead_worker(error):
            raise
        name = getattr(model, "name", "the model")
        reason = first_line_of(error) or type(error).__name__
        raise UserError(f"{name} failed while it was measured: {reason}{place_of(error)}") from error


def place_of(error: BaseException) -> str:
    """Return the line of the user's own code that raised an error, such as `` (mynets.py, line 8)``.

    It is empty if there is none, and for a SyntaxError, whose message has it.
    """
    if isinstance(error, SyntaxError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in frames if _is_own(frame)]
    return own[-1] if own else ""


def _is_own(frame: traceback.FrameSummary) -> bool:
    """Return whether its file is neither of this package, nor an installed one, nor of Python itself."""
    file = Path(frame.filename)
    foreign = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")))
    return file.is_file() and INSTALLED.isdisjoint(file.parts) and not any(map(file.is_relative_to, foreign))
