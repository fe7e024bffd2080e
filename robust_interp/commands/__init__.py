"""One module a command: `add` declares its arguments, and what it sets as `run` carries it out."""
