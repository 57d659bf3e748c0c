"""A model with latent attention."""

import pytest

from engine.core import run


def test_all_tokens_are_seen():
    assert run([1, 2, 3], block_size=64) == 3


def test_a_wrong_block_size_is_refused():
    with pytest.raises(ValueError, match="block size of 64"):
        run([1, 2, 3], block_size=16)
