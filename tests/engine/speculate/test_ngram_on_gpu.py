"""The n-gram kernel compiled: large batches of long texts, in a CUDA graph, and without a wait."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sample_engine.speculate.kernels import reference as oracle
from sample_engine.speculate.ngram import NgramSpeculator, look_up_ngrams
from tests.engine.support.ngram import state_of
from tests.engine.support.waiting import no_waiting

pytestmark = pytest.mark.gpu

RULES = [(5, 5, 2), (3, 3, 3), (8, 7, 1), (1, 1, 1), (5, 16, 4)]


def some_texts(
    num_reqs: int, size: int, alphabet: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts with repetitions; lengths from 0 to all of the matrix."""
    rng = np.random.default_rng(seed)
    texts = rng.integers(0, alphabet, (num_reqs, size))
    lengths = rng.integers(0, size + 1, num_reqs)
    lengths[:4] = [size, 0, 1, 2][: len(lengths)]
    for text, length in zip(texts, lengths, strict=True):
        piece = int(rng.integers(1, 12))
        if length > 3 * piece:  # what the text ends with is somewhere before, too
            start = int(rng.integers(0, length - 2 * piece))
            text[start : start + piece] = text[length - piece : length]
    return torch.from_numpy(texts), torch.from_numpy(lengths)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("alphabet", [2, 40, 50_000])
@pytest.mark.parametrize(("num_reqs", "size"), [(256, 1024), (33, 8191), (4, 131_072), (1, 7)])
def test_kernel_oracle_and_numpy_draft_the_same(
    num_reqs: int, size: int, alphabet: int, rule: tuple[int, int, int]
) -> None:
    from sample_engine.speculate.kernels.ngram import look_up_ngrams as kernel

    texts, lengths = some_texts(max(4, num_reqs), size, alphabet)
    drafts, counts = look_up_ngrams(texts.numpy(), lengths.numpy(), *rule)
    assert counts.any() or size < 10
    on_gpu = texts.cuda(), lengths.cuda()
    kernel(*on_gpu, *rule)  # compiled
    with no_waiting():
        found = [kernel(*on_gpu, *rule), oracle.look_up_ngrams(*on_gpu, *rule)]
    found.append(kernel(on_gpu[0].to(torch.int32), on_gpu[1], *rule))
    for tokens, how_many in found:
        assert tokens.cpu().equal(torch.from_numpy(drafts))
        assert how_many.cpu().equal(torch.from_numpy(counts))


def test_the_speculator_drafts_the_same_on_both_devices_and_may_be_captured() -> None:
    texts, lengths = some_texts(65, 2049, 20)
    rows = torch.randperm(65, generator=torch.Generator().manual_seed(0))[:40]
    num_sampled = torch.arange(40) % 3
    speculator = NgramSpeculator(5, 5, 2)
    expected = speculator.propose(state_of(texts, rows, lengths[rows], num_sampled))
    assert expected is not None
    assert expected.counts is not None
    assert expected.counts.any()
    nobody = torch.zeros(40, dtype=torch.int64)
    there = state_of(*(each.cuda() for each in (texts, rows, lengths[rows], nobody)))
    speculator.propose(there)  # compiled
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = speculator.propose(there)
    there.num_sampled.copy_(num_sampled)
    graph.replay()
    assert captured is not None
    assert captured.counts is not None
    assert captured.token_ids.cpu().equal(expected.token_ids)
    assert captured.counts.cpu().equal(expected.counts)


@pytest.mark.parametrize(("num_reqs", "size", "limit"), [(32, 1024, 0.1), (32, 32_768, 1.0)])
def test_a_lookup_takes_little_of_a_step(num_reqs: int, size: int, limit: float) -> None:
    """In milliseconds on the device, the worst case: no match, so all of each text is read."""
    from sample_engine.speculate.kernels.ngram import look_up_ngrams as kernel

    texts = torch.arange(size).expand(num_reqs, size).contiguous().cuda()
    lengths = torch.full((num_reqs,), size).cuda()
    kernel(texts, lengths, 5, 5, 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            kernel(texts, lengths, 5, 5, 2)
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) / 20 < limit
