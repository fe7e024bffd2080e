"""The exception for mistakes of a user: its message is one line that says what to do."""


class UserError(ValueError):
    """A mistake in the request, not in the program. The command line prints it without a traceback."""


class RandomModelError(UserError):
    """A model with random outputs, which cannot be measured."""
