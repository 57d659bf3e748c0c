"""Tests of whether a process may run further tests."""

from __future__ import annotations

import pytest

from pytest_cudafork.health import fitness


@pytest.mark.parametrize("recover", [True, False])
def test_the_first_word_counts_and_in_this_process_only(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, recover: bool
) -> None:
    config = pytester.parseconfig()
    assert fitness.unfit(config) is None
    said = fitness.declare_unfit(config, "t.py::b", "the CUDA context is broken", recover=recover)
    again = fitness.declare_unfit(config, "t.py::c", "something else", recover=True)
    assert again == said == fitness.unfit(config)
    assert said.text == "the CUDA context is broken since t.py::b"
    assert (fitness.recovering_from(config) is not None) == recover
    monkeypatch.setattr(fitness, "getpid", lambda: said.pid + 1)
    assert fitness.unfit(config) is None
    assert fitness.recovering_from(config) is None
