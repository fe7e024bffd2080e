"""Measuring: turn a request into a plan of cells, and measure those that are not stored yet."""
