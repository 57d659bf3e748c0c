"""Masking happens in the sampler's process."""

from xgrammar.matcher import apply_token_bitmask
from xgrammar.worker import run_in_worker


def test_forbidden_tokens_become_impossible():
    masked = run_in_worker(apply_token_bitmask, [0.5, 0.25], [True, False], "cpu")
    assert masked == [0.5, float("-inf")]
