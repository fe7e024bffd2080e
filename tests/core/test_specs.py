"""Spec strings, of attacks and of corruptions: hostile ones are refused in one short line, soon."""

import time

import pytest
from support.messages import one_line
from support.one_pixel import IMAGES, LABELS

from robust_interp import attacks, corruptions, data
from robust_interp.core.errors import UserError
from robust_interp.corruptions import Corruptor

SPECS = {
    "nested": "(" * 5000 + "pgd" + ")" * 5000,
    "nested in a value": "pgd(steps=" + "(" * 5000 + "1" + ")" * 5000 + ")",
    "nested as far as is read": "pgd(steps=" + "(" * 240 + "1" + ")" * 240 + ")",
    "calls": "pgd(" * 5000,
    "signs": "pgd(steps=" + "-" * 5000 + "1)",
    "signs as far as are read": "pgd(steps=" + "-" * 471 + "1)",
    "a comment": "pgd # (steps=2)",
    "a comment inside": "pgd(steps=2 #)",
    "fullwidth digits": "pgd(steps=２)",
    "arabic digits": "pgd(steps=٣)",
    "a superscript": "pgd(steps=²)",
    "infinite": "pgd(alpha=1e400)",
    "infinite steps": "pgd(steps=1e400)",
    "infinite eps": "pgd(eps=1e400)",
    "infinite by product": "pgd(alpha=1e300*1e300)",
    "a quotient beyond floats": "pgd(alpha=" + "9" * 400 + "/3)",
    "a share beyond floats": "pgd(alpha=eps*" + "9" * 400 + ")",
    "a share by what floats lack": "pgd(alpha=eps/" + "9" * 400 + ")",
    "a long number": "pgd(steps=" + "9" * 5000 + ")",
    "an import": "__import__('os').system('exit 1')",
    "an import as a value": "pgd(steps=__import__('os').getpid())",
    "very long": "pgd" * 1_000_000,
    "a null": "pgd\0",
    "half a character": "pgd(steps='\ud800')",
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["attacks", "corruptions"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_hostile_spec_is_one_short_line_and_soon(kind, spec):
    text = SPECS[spec] if kind == "attacks" else SPECS[spec].replace("pgd", "shot_noise")
    text = text if kind == "attacks" else text.replace("steps", "severity").replace("alpha", "severity")
    corruptor = Corruptor(data.from_arrays(IMAGES, LABELS), 0)
    began = time.process_time()
    with pytest.raises(UserError) as refusal:
        attacks.parse_attacks(text, [0.1], {}, 0) if kind == "attacks" else corruptions.parse_corruptions(
            text, corruptor
        )
    assert time.process_time() - began < 2
    assert len(one_line(refusal.value)) < 1500
