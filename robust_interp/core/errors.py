"""Exceptions for the user. Each message is one line that says what to do."""

from robust_interp.core.texts import one_line


class UserError(ValueError):
    """A mistake of the user, not of the program. The command line prints it without a traceback.

    Args:
        message: The message. It is put into one line, with control characters escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class RandomModelError(UserError):
    """A model with random outputs, which cannot be measured."""


class Stopped(KeyboardInterrupt):
    """A signal that ends a command in the same way as Ctrl-C.

    Attributes:
        signum: The signal's number.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class IgnoredWarning(UserWarning):
    """Stored data was ignored. The command line prints the warning as one line."""


class DamageWarning(IgnoredWarning):
    """Stored data is damaged and was ignored."""
