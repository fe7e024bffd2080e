"""Figures, drawn from plain tables and arrays: nothing here knows a model or imports torch.

A module has `draw_...(axes, data)` for a panel and `..._figure(data)` for a whole figure; `style` holds how
they look and writes them.
"""
