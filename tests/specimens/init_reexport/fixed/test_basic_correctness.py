"""A small model through the whole engine, graphs on."""

import pytest

from engine.core import run_full_graph


@pytest.mark.parametrize("quantization", ["none", "fp8"])
def test_full_graph(quantization):
    assert run_full_graph(quantization) == [2.0, 6.0]
