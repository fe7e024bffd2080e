"""Entry point of ``python -m robust_interp`` and of the robust-interp command.

Ctrl-C stops it cleanly, even during the imports.
"""

import sys


def start() -> int:
    """Run the command line of this process and return its exit status."""
    try:
        from robust_interp.cli.main import main  # slow: imported here so that Ctrl-C is caught meanwhile

        return main()
    except KeyboardInterrupt:
        print("\nrobust-interp: stopped before anything was begun", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(start())
