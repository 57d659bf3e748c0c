"""A whole decode step of a Llama-3-8B with random weights, captured as one CUDA graph.

Whoever measures says how linear layers are built and whether kernels overlap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from unittest import mock

import torch
from attention_cases import DecodeCase

from sample_engine.model.kernels import tuning
from sample_engine.model.kernels.linear import LinearConfig
from sample_engine.model.llama import Attend, Llama

__all__ = ["Table", "graph_of", "step_of", "through_backend", "tuned", "untouched", "weight_bytes"]

Table = Mapping[tuple[int, int], LinearConfig]

_BLOCK_SIZE = 16


@contextlib.contextmanager
def tuned(table: Table | None, *, overlap: bool) -> Iterator[None]:
    """Linear layers by this table, or all of them by cuBLAS (``None``)."""
    usual = tuning.linear_config

    def config_of(size_n: int, size_k: int) -> LinearConfig:
        return (table or {}).get((size_n, size_k)) or usual(size_n, size_k)

    most = tuning.MOST_TOKENS if table is not None else 0
    with (
        mock.patch.object(tuning, "linear_config", config_of),
        mock.patch.object(tuning, "MOST_TOKENS", most),
        mock.patch.object(tuning, "OVERLAP", overlap),
    ):
        yield


def weight_bytes(model: Llama) -> int:
    """What a step has to read: all weights but the embedding."""
    rest = (each for name, each in model.named_parameters() if "embed_tokens" not in name)
    return sum(each.numel() * each.element_size() for each in rest)


def graph_of(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Work as a graph, after a call that compiled it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def untouched(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention that costs nothing."""
    return q


def through_backend(num_tokens: int, length: int) -> Attend:
    """The Triton backend over a text of this length for each token; layers share one cache."""
    from sample_engine.attention.triton_backend import TritonBackend

    case = DecodeCase([length] * num_tokens, _BLOCK_SIZE, torch.device("cuda"))
    backend = TritonBackend(case.spec)
    slots = torch.arange(num_tokens, dtype=torch.int64, device="cuda")

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        backend.write_kv(k, v, case.cache, slots)
        out = torch.empty_like(q)
        backend.forward(q, case.cache, metadata, out)
        return out

    metadata = backend.build(case.common)
    return attend


def step_of(model: Llama, num_tokens: int, attend: Attend) -> Callable[[], torch.Tensor]:
    """A forward pass with its logits and the most likely tokens, on fixed inputs."""
    tokens = torch.arange(num_tokens, device="cuda") * 1000 + 17
    positions = torch.arange(num_tokens, device="cuda") + 1000
    logits = torch.empty(num_tokens, model.config.vocab_size, device="cuda")

    def step() -> torch.Tensor:
        hidden, _ = model(tokens, positions, attend)
        logits.copy_(model.compute_logits(hidden))
        logits.argmax(-1)
        return logits

    return step
