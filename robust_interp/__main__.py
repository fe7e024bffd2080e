"""``python -m robust_interp``: the robust-interp command."""

import sys

from robust_interp.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
