"""Whether a robust accuracy can be believed: what is measured for that, and how it is judged."""
