"""Frost with pictures and without: those of the authors come with another package."""

import hashlib

import pytest
from PIL import Image
from support.cifar_c import FROST_COLOURS

from robust_interp.corruptions import weather


@pytest.fixture
def frost_pictures(tmp_path, monkeypatch):
    """Stands in for the package with the authors' pictures: five plain ones, of 200 x 300 pixels."""
    folder = tmp_path / "frost"
    folder.mkdir()
    md5s = {}
    for at, colour in enumerate(FROST_COLOURS):
        name = f"frost{at + 1}.png"
        Image.new("RGB", (300, 200), colour).save(folder / name)
        md5s[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    monkeypatch.setattr(weather, "FROST_PICTURES", md5s)
    monkeypatch.setattr(weather, "frost_folder", lambda: folder)
    weather.frost_pictures.cache_clear()
    yield folder
    weather.frost_pictures.cache_clear()


@pytest.fixture
def no_frost(monkeypatch):
    monkeypatch.setattr(weather, "frost_folder", lambda: None)
