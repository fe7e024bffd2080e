"""JSON with one value of it replaced by another: what a stranger's file may hold."""

import json

VALUES = {
    "null": "null",
    "a list": "[]",
    "an object": "{}",
    "a text": '"x"',
    "true": "true",
    "below 0": "-1",
    "of 400 digits": "1" + "0" * 400,
    "of 5000 digits": "1" + "0" * 5000,
    "beyond 64 bits": "1" + "0" * 20,
    "infinite": "1e400",
    "no number": "NaN",
    "nested deeply": "[" * 50_000 + "]" * 50_000,
    "half a character": r'"\ud800"',
    "a command": r'"\u001b[2J\u009b2J"',
}
_MARK = "@@@"


def places(value, at=()):
    """The way to each value within a JSON value, itself included: keys and indices."""
    yield at
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*at, key))


def spoilt(value, at, text):
    """The JSON text of a value in which `text` stands at one place."""
    value = json.loads(json.dumps({"": value}))
    inside, last = value, ""
    for key in at:
        inside, last = inside[last], key
    inside[last] = _MARK
    return json.dumps(value[""]).replace(f'"{_MARK}"', text)
