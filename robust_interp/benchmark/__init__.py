"""Measuring: a request becomes a plan of cells, and those that are not stored yet are measured."""
