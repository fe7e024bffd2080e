"""Figures, drawn from plain tables and arrays. This subpackage imports neither models nor torch.

A module has `draw_...(axes, data)` for a panel and `..._figure(data)` for a whole figure. `style` sets the
looks of all figures and writes them.
"""

from robust_interp.core.errors import UserError
from robust_interp.core.extras import install

try:
    import matplotlib  # noqa: F401
except ImportError as error:  # optional, since benchmarks draw no figures
    raise UserError(f"figures need matplotlib: {install('plots')}") from error
