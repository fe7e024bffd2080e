"""Figures, drawn from plain tables and arrays: nothing here knows a model or imports torch.

A module has `draw_...(axes, data)` for a panel and `..._figure(data)` for a whole figure; `style` holds how
they look and writes them.
"""

from robust_interp.core.errors import UserError
from robust_interp.core.extras import install

try:
    import matplotlib  # noqa: F401
except ImportError as error:  # an extra: a benchmark draws nothing
    raise UserError(f"figures need matplotlib: {install('plots')}") from error
