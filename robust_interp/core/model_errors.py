"""Errors of a user's model, which may raise anything in any pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from robust_interp.core.errors import UserError
from robust_interp.core.memory import is_out_of_memory
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
        raise UserError(f"{name} failed while it was measured: {reason}") from error
