import pytest


def test_the_import_is_harmless(cuda_state, cuda_uninitialized):
    pytest.importorskip("torch")
    state = cuda_state()
    assert state.verdict.value == "clean", state.why
    assert state.safe_to_fork
