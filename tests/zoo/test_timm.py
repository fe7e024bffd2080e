"""What zoo/registered.py and models/registration.py take for granted of timm, beyond what it documents.

Where a new timm is another in this, these tests say so by name. What it does with our networks is held by
its own test suite (tests/models/test_timm_suite.py).
"""

import sys
import types

import pytest
import timm
from timm.models import generate_default_cfgs, register_model
from torch import nn


@pytest.fixture
def module(fresh):
    """A module that timm finds models in, until the end of a test."""
    made = types.ModuleType("made_for_this_test")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def registered(module, name):
    def entrypoint(pretrained=False, **kwargs):
        return nn.Identity()

    entrypoint.__name__, entrypoint.__module__ = name, module.__name__
    return register_model(entrypoint)


def test_an_untagged_name_is_first_among_the_tags_if_it_is_put_there():
    (made,) = generate_default_cfgs(
        {"a": {"num_classes": 3}, "a.one": {"num_classes": 2, "file": "x"}}
    ).values()
    assert list(made.tags) == ["one", ""], "timm prefers weights no more: timm_cfgs need not reorder the tags"
    made.tags.remove("")
    made.tags.appendleft("")
    assert made.default.num_classes == 3


def test_the_tag_of_a_name_is_handed_over_as_pretrained_cfg(module):
    given = {}

    def made_for_timm(pretrained=False, **kwargs):
        given.update(kwargs)
        return nn.Identity()

    made_for_timm.__module__ = module.__name__
    register_model(made_for_timm)
    timm.create_model("made_for_timm.some_tag")
    assert given["pretrained_cfg"] == "some_tag", "Architecture.create finds a tag's arguments by this"


def test_a_model_that_takes_anothers_name_is_warned_of_in_these_words(module):
    registered(module, "made_twice")
    with pytest.warns(UserWarning, match="^Overwriting made_twice in registry"):  # core/registry.imported
        registered(module, "made_twice")


def test_models_are_listed_by_the_last_part_of_their_modules_name(module):
    registered(module, "made_to_be_listed")
    assert "made_to_be_listed" in timm.list_models(module="made_for_this_test")
    assert "made_to_be_listed" not in timm.list_models(module="resnet")
    assert timm.model_entrypoint("made_to_be_listed").__module__ == "made_for_this_test"
