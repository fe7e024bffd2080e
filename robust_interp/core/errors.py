"""What a user is told of what goes wrong: each message is one line that says what to do."""


class UserError(ValueError):
    """A mistake in the request, not in the program. The command line prints it without a traceback."""


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
