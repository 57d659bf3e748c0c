"""The engine core is forked."""

from engine.triton_utils.importing import HAS_TRITON
from engine.worker import run_in_worker


def test_the_core_agrees_about_triton():
    assert run_in_worker(bool, HAS_TRITON) == HAS_TRITON
