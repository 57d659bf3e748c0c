"""The corpora of the fuzzer, which every reader must take or refuse as it promises."""

from __future__ import annotations

import pytest

from tests.fuzz.run import CORPUS
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_in_a_corpus_breaks_its_reader(name: str) -> None:
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs
    for path in inputs:
        TARGETS[name](path.read_bytes())


def test_there_is_no_corpus_without_a_reader() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
