"""Can a robust accuracy be believed? What is measured for that, and how it is judged."""
