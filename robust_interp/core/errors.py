"""What a user is told of what goes wrong: each message is one line that says what to do."""

from robust_interp.core.texts import one_line


class UserError(ValueError):
    """A mistake in the request, not in the program. The command line prints it without a traceback.

    Args:
        message: In one line; control characters in what it quotes are written out.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class RandomModelError(UserError):
    """A model with random outputs, which cannot be measured."""


class Stopped(KeyboardInterrupt):
    """A signal that ends a command as Ctrl-C does.

    Attributes:
        signum: The signal's number.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class DamageWarning(UserWarning):
    """Something that is stored is damaged, and was left out. The command line prints it as a line."""
