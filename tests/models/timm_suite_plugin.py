"""pytest plugin for timm's own tests/test_models.py: it sees our names and no others.

Loaded by test_timm_suite.py with `-p`, which comes before timm's tests ask for their names.
"""

import os

import pytest
import timm

import robust_interp  # noqa: F401  registers our names

NAMES = set(os.environ["TIMM_SUITE_NAMES"].split())
VERSION = os.environ["TIMM_SUITE_VERSION"]

_list_models = timm.list_models


def _list_ours(filter="", module="", **kwargs):
    # Some tests take the models of timm's own modules only: without them our names would be left out,
    # and nothing would say so.
    return [name for name in _list_models(filter, **kwargs) if name.split(".")[0] in NAMES]


timm.list_models = _list_ours


def pytest_configure():
    if timm.__version__ != VERSION:
        raise pytest.UsageError(f"timm {VERSION} was to be tested, but {timm.__version__} is imported")


def pytest_collection_modifyitems(config, items):
    ours, others = [], []
    for item in items:
        name = item.callspec.params.get("model_name") if hasattr(item, "callspec") else None
        (ours if str(name).split(".")[0] in NAMES else others).append(item)
    items[:] = ours
    config.hook.pytest_deselected(items=others)
