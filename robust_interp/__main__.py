"""``python -m robust_interp``, and the robust-interp command: both can be stopped while they start."""

import sys


def start() -> int:
    """Run the command of this process's arguments; the exit status."""
    try:
        from robust_interp.cli.main import main  # which imports for a while

        return main()
    except KeyboardInterrupt:
        print("\nrobust-interp: stopped before anything was begun", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(start())
