"""The settings of a run in a TOML file: keys are fields of `Request`, units are those of the command line."""

from __future__ import annotations

import tomllib
from argparse import ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

import tomlkit

from robust_interp.benchmark.request import BESIDE, DEFAULTS, SETTINGS, SettingInfo
from robust_interp.core.errors import UserError
from robust_interp.core.files import write_text
from robust_interp.core.registry import nearest

KEYS: dict[str, SettingInfo] = SETTINGS | BESIDE


def read(path: Path) -> dict[str, Any]:
    """Read a file; return the fields that it sets, as `Request` takes them.

    Raises:
        UserError: naming file and key, if the file cannot be read, a key is unknown or a value is invalid.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a TOML file: {error}") from error
    return {key: _value(path, key, value) for key, value in found.items()}


def save(path: Path, given: Mapping[str, Any]) -> None:
    """Write the settings to a file, in the form of `text`.

    Raises:
        UserError: if the file cannot be written.
    """
    write_text(path, text(given))


def text(given: Mapping[str, Any]) -> str:
    """Return settings as TOML that `read` reads back: each field with its help, unset ones as comments."""
    return "\n".join(_lines(name, about, given.get(name)) for name, about in KEYS.items())


def _value(path: Path, key: str, value: object) -> Any:
    if key not in KEYS:
        near = nearest(key, KEYS)
        hint = f"did you mean {near}?" if near else f"known: {', '.join(KEYS)}"
        raise UserError(f"{path}: unknown key {key!r}; {hint}")
    try:
        return KEYS[key].form.from_file(value)
    except ArgumentTypeError as error:
        raise UserError(f"{path}: {key}: {error}") from error


def _lines(name: str, about: SettingInfo, value: Any) -> str:
    comment = "".join(f"# {line}\n" for line in wrap(about.text(DEFAULTS[name]), 100))
    if value is None:
        return f"{comment}# {name} is not set\n"
    return f"{comment}{name} = {tomlkit.item(about.form.write(value)).as_string()}\n"
