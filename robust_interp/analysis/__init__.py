"""What trained networks look like inside: interpolation coefficients, loss landscapes, stability.

Each module computes plain tables and arrays; `robust_interp.figures` draws them.
"""
