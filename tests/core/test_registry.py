"""What is said of a name that is not there."""

import pytest

from robust_interp.core.registry import equal_ignoring_case, unknown


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CIFAR10", "did you mean cifar10?"),
        ("cifar-100", "did you mean cifar100?"),
        ("DIGITS", "did you mean digits?"),
        ("cifar11", "did you mean cifar10, cifar100?"),
        ("zzz", "known: cifar10, cifar100, digits"),
    ],
)
def test_a_name_that_differs_in_case_and_hyphens_alone_is_the_one_meant(name, hint):
    error = unknown("data set", name, ["digits", "cifar10", "cifar100"])
    assert str(error) == f"unknown data set {name!r}; {hint}"


def test_names_are_alike_up_to_case_and_marks():
    assert equal_ignoring_case("In-ResNet 20", ["in_resnet20", "in_resnet200", "IN_RESNET20"]) == [
        "in_resnet20",
        "IN_RESNET20",
    ]
