"""Stored measurements -> scores -> tables, comparisons, exports. No torch here."""
