"""Images that worker processes decode ahead of time."""

import os

import numpy as np
import pytest

from robust_interp.core.errors import UserError
from robust_interp.data import handover
from robust_interp.data.decoding import Stream


class Numbered:
    """Image i is full of i, with the hash 2**63 + i."""

    shape = (3, 64, 64)

    def __getitem__(self, ids):
        images = np.empty((len(ids), *self.shape), np.uint8)
        images[:] = np.array(ids, np.uint8)[:, None, None, None]
        return images, np.array(ids, np.uint64) + np.uint64(2**63), ""


class Dying(Numbered):
    def __getitem__(self, ids):
        os._exit(1)


@pytest.mark.slow
def test_images_are_read_in_sequence_and_in_any_order():
    stream = Stream(Numbered(), 150, workers=2)
    for ids in (np.arange(100), np.arange(100, 150), np.arange(3), np.array([140, 2])):
        images, hashes = stream.read(ids)
        assert images.shape == (len(ids), 3, 64, 64)
        assert (images == ids[:, None, None, None]).all()
        assert hashes.tolist() == [2**63 + int(one) for one in ids]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "is_told"), [("fork", False), ("spawn", True), ("forkserver", True)])
def test_a_worker_that_dies_where_scripts_run_again_is_told_what_to_do(monkeypatch, method, is_told):
    stream = Stream(Dying(), 150, workers=1)
    monkeypatch.setattr(handover.multiprocessing, "get_start_method", lambda: method)
    with pytest.raises(UserError, match="a process that decodes images has ended") as refusal:
        stream.read(np.arange(3))
    assert ('if __name__ == "__main__"' in str(refusal.value)) is is_told
    assert "\n" not in str(refusal.value)
