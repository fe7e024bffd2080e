"""Command line: one module per command; `add_to` declares its arguments and `run` executes it."""
