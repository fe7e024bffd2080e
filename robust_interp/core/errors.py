"""The one exception a user is meant to see: its message is one line that says what to do."""


class UserError(ValueError):
    """A mistake in what was asked for, not in the program. The CLI prints it without a traceback."""


class RandomModelError(UserError):
    """A model that answers differently when asked again: nothing that is measured of it is a number."""
