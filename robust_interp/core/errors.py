"""What a user is meant to see of what goes wrong: each message is one line that says what to do."""


class UserError(ValueError):
    """A mistake in what was asked for, not in the program. The CLI prints it without a traceback."""


class RandomModelError(UserError):
    """A model that answers differently when asked again: nothing that is measured of it is a number."""


class DamageWarning(UserWarning):
    """Something that is stored is damaged, and was left out. The CLI prints it as a line."""
