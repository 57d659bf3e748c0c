"""The interpreted kernel drafts what ten lines of code do, and what its oracle does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings

from sample_engine.speculate.kernels import reference as oracle
from tests.engine.support.ngram_texts import batches, brute_force, padded, unpadded


# Compiled anew for each rule and width, so the interpreted kernel gets a few of them.
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("rule", [(5, 5, 2), (3, 1, 1), (1, 4, 4), (6, 3, 1)], ids=str)
@settings(deadline=None, max_examples=25)
@given(texts=batches(40))
@example([[1, 2, 3, 1, 2], [], [1], [2, 2], [1, 1, 1, 1, 1, 1, 1]])
def test_the_kernel_drafts_what_brute_force_does(
    rule: tuple[int, int, int], texts: list[list[int]]
) -> None:
    kernel = pytest.importorskip("sample_engine.speculate.kernels.ngram")
    expected = [brute_force(text, *rule) for text in texts]
    assert unpadded(*kernel.look_up_ngrams(*padded(texts, 40), *rule)) == expected


@pytest.mark.usefixtures("interpreter")
def test_the_kernel_finds_matches_in_all_of_its_rounds_and_across_their_edges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = pytest.importorskip("sample_engine.speculate.kernels.ngram")
    monkeypatch.setattr(kernel, "_BLOCK", 16)
    texts = []
    for place in range(60):  # the longest match wherever it is, shorter ones behind it
        text = [0] * 64 + [7, 8, 9]
        text[place : place + 4] = [7, 8, 9, 5]
        texts.append(text)
    texts[-1][10:14] = [7, 8, 9, 4]
    rule = (3, 3, 2)
    expected = [brute_force(text, *rule) for text in texts]
    assert expected[20] == [5, 0, 0]
    assert unpadded(*kernel.look_up_ngrams(*padded(texts), *rule)) == expected


@pytest.mark.usefixtures("interpreter")
def test_rows_choose_texts_out_of_a_larger_matrix() -> None:
    kernel = pytest.importorskip("sample_engine.speculate.kernels.ngram")
    tokens, _ = padded([[1, 2, 1], [9, 9], [3, 4, 5, 3, 4], [6, 7, 6]], 12)
    rows = torch.tensor([2, 0, 3])
    expected = [[5, 3, 4], [2, 1], []]
    for look_up in (oracle.look_up_ngrams, kernel.look_up_ngrams):
        found = look_up(tokens, torch.tensor([5, 3, 0]), 3, 2, 1, rows)
        assert unpadded(*found) == expected
