"""The command: one module a command, `add_to` declares its arguments and `run` carries it out."""
