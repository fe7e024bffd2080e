"""Checks for the tests of plug-ins: whether a plug-in obeys the rules of the benchmark.

Each check takes a registered name or the object itself. It raises an AssertionError that names the broken
rule. ::

    from robust_interp.testing import check_attack

    def test_my_attack():
        check_attack("my_attack")
"""

from robust_interp.testing.checks import check_attack, check_corruption, check_dataset, check_model

__all__ = ["check_attack", "check_corruption", "check_dataset", "check_model"]
