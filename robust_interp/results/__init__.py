"""Scores, tables, comparisons and exports, computed from the stored measurements. Does not import torch."""
