"""Analyses of trained networks: interpolation coefficients, loss landscapes, stability.

Each module computes plain tables and arrays; `robust_interp.figures` draws them.
"""
