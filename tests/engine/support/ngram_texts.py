"""Texts to look n-grams up in, and the rule in ten lines of code."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

JUNK = 1  # behind a text's end; as a token it occurs in texts, so that reading it would show


def brute_force(text: list[int], count: int, longest: int, shortest: int) -> list[int]:
    """The rule, as it is said."""
    for size in range(longest, shortest - 1, -1):
        suffix = text[len(text) - size :]
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == suffix:
                return text[start + size :][:count]
    return []


def padded(texts: list[list[int]], width: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = [len(text) for text in texts]
    tokens = torch.full((len(texts), max([width, *lengths])), JUNK)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = torch.tensor(text, dtype=torch.int64)
    return tokens, torch.tensor(lengths, dtype=torch.int64)


def unpadded(drafts: torch.Tensor, counts: torch.Tensor) -> list[list[int]]:
    lists: list[list[int]] = drafts.tolist()
    for row, count in zip(lists, counts.tolist(), strict=True):
        assert row[count:] == [-1] * (len(row) - count)
    return [row[:count] for row, count in zip(lists, counts.tolist(), strict=True)]


def batches(longest: int) -> st.SearchStrategy[list[list[int]]]:
    tokens = st.integers(1, 3) | st.sampled_from([1, 2])
    return st.lists(st.lists(tokens, max_size=longest), min_size=0, max_size=6)
