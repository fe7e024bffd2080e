"""Checks for the tests of plug-ins: does a plug-in keep the rules that a benchmark relies on?

Each check takes a registered name or the thing itself, and raises an AssertionError that says which rule is
broken. ::

    from robust_interp.testing import check_attack

    def test_my_attack():
        check_attack("my_attack")
"""

from robust_interp.testing.checks import check_attack, check_corruption, check_dataset, check_model

__all__ = ["check_attack", "check_corruption", "check_dataset", "check_model"]
