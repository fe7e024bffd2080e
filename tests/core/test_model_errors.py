"""Errors of a user's model name the line of the user's own code."""

import ast
from pathlib import Path

import pytest
import torch

from robust_interp.core.errors import UserError
from robust_interp.core.model_errors import place_of, reported_for

HERE = Path(__file__).name


class Model(torch.nn.Module):
    name = "mine"

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 2)

    def forward(self, images):
        return self.head(images)  # the line that is named, not that of torch which raises


def line_of(call):
    """The line of this file with a call."""
    return next(
        node.lineno
        for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node) == call
    )


def test_an_error_within_torch_is_placed_where_the_model_calls_torch():
    with pytest.raises(UserError) as told, reported_for(model := Model()):
        model(torch.zeros(1, 3))
    assert str(told.value).startswith("mine failed while it was measured: mat1 and mat2 shapes")
    assert str(told.value).endswith(f" ({HERE}, line {line_of('self.head(images)')})")


def test_code_without_a_file_has_no_place():
    namespace = {}
    exec("def fail():\n    raise KeyError('a')", namespace)
    with pytest.raises(KeyError) as told:
        namespace["fail"]()
    told.value.__traceback__ = told.value.__traceback__.tb_next  # without the frame of this test
    assert place_of(told.value) == ""
