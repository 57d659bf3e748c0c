"""Correct pairs of warm-up and capture that look suspicious: none of them may raise an alarm.

They know the public names of the plugin alone.
"""

from __future__ import annotations

import collections
import enum
import functools
import threading
import types
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tests.specimens.graphs.bench import Bench
from tests.specimens.graphs.engine import BLOCK, Desc, paged_attention, slots_of

ROWS, PAGES, WIDTH = 4, 2, 8
SLOTS = (1 + ROWS * PAGES) * BLOCK


class _Kind(enum.Enum):
    DECODE = "decode"


@dataclass(frozen=True)
class _Spec:
    """Frozen, and the same object in every state."""

    heads: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class _OpenDesc(NamedTuple):
    num_tokens: int
    num_reqs: int | None = None


class _Plan:
    """Planned by the first layer that comes, for all layers of the pass."""

    def __init__(self, seq_lens: torch.Tensor) -> None:
        self.seq_lens = seq_lens
        self.tiles: torch.Tensor | None = None

    def get(self) -> torch.Tensor:
        if self.tiles is None:
            self.tiles = torch.div(self.seq_lens + 15, 16, rounding_mode="floor")
        return self.tiles


class _Node:
    """An object in slots that refers to itself by way of its owner."""

    __slots__ = ("lengths", "owner")

    def __init__(self, lengths: torch.Tensor) -> None:
        self.lengths = lengths
        self.owner: Any = None


def kv_cache_in_the_state(bench: Bench) -> None:
    """The state holds the KV cache, which the warm-up has written to before the capture begins."""
    cache, hidden = bench.randn(SLOTS, WIDTH), bench.randn(ROWS, WIDTH)
    table = bench.tensor(bench.shuffled(ROWS * PAGES, 1)).view(ROWS, PAGES)
    seq_lens = bench.ints(0, BLOCK * PAGES - 1, ROWS)

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, dict[str, torch.Tensor]]:
        state = {"kv_cache": cache, "block_table": table, "seq_lens": seq_lens}

        def forward(mode: str) -> torch.Tensor:
            state["kv_cache"].index_copy_(0, slots_of(table, seq_lens), hidden)
            return paged_attention(hidden, state["kv_cache"], table, seq_lens + 1)

        return forward, state

    bench.capture_pair(
        create_forward_fn,
        Desc(ROWS, ROWS),
        persistent={"kv_cache": cache, "table": table, "seq_lens": seq_lens, "hidden": hidden},
        vary=[
            lambda: seq_lens.add_(1).remainder_(BLOCK * PAGES - 1),
            lambda: hidden.copy_(bench.randn(ROWS, WIDTH)),
        ],
    )


def immutable_objects_are_shared(bench: Bench) -> None:
    """Both states hold the same frozen, immutable objects: spec, enum, shape, mapping, function."""
    spec = _Spec(2, torch.float32, (ROWS, WIDTH))
    names = types.MappingProxyType({"layers.0": 0})
    hidden = bench.randn(ROWS, WIDTH)

    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * spec.heads

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, dict[str, Any]]:
        state = {
            "spec": spec,
            "kind": _Kind.DECODE,
            "names": names,
            "shape": hidden.shape,
            "device": hidden.device,
            "scale": scale,
            "type": _Spec,
            "nothing": (),
        }
        return lambda mode: state["scale"](hidden), state

    bench.capture_pair(
        create_forward_fn,
        Desc(ROWS, ROWS),
        persistent={"hidden": hidden},
        vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))],
    )


def descriptor_leaves_requests_open(bench: Bench) -> None:
    """The descriptor does not say how many requests there are, the state has to choose some."""
    hidden = bench.randn(8, WIDTH)

    def create_forward_fn(desc: _OpenDesc, warmup: bool) -> tuple[Any, dict[str, Any]]:
        state = {"num_reqs": 3, "num_tokens": desc.num_tokens, "num_actual_tokens": 5}
        return lambda mode: hidden[: desc.num_tokens].relu(), state

    bench.capture_pair(
        create_forward_fn,
        _OpenDesc(8),
        persistent={"hidden": hidden},
        vary=[lambda: hidden.copy_(bench.randn(8, WIDTH))],
    )


def one_plan_for_all_layers(bench: Bench) -> None:
    """The layers of a pass share a metadata object; the first one plans for all."""
    seq_lens, hidden = bench.ints(1, 99, ROWS), bench.randn(ROWS, WIDTH)

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, dict[str, _Plan]]:
        plan = _Plan(seq_lens)
        state = {f"layers.{number}": plan for number in range(3)}

        def forward(mode: str) -> torch.Tensor:
            out = hidden
            for metadata in state.values():
                out = torch.tanh(out * metadata.get()[:, None])
            return out

        return forward, state

    bench.capture_pair(
        create_forward_fn,
        Desc(ROWS, ROWS),
        persistent={"seq_lens": seq_lens, "hidden": hidden},
        vary=[lambda: seq_lens.copy_(bench.ints(1, 99, ROWS))],
    )


def persistent_by_a_function(bench: Bench) -> None:
    """The persistent tensors are looked up in the state; each pass sees other views of them."""
    buffers = {"seq_lens": bench.ints(1, 9, 2 * ROWS), "slots": bench.ints(0, 50, 2 * ROWS)}
    hidden = bench.randn(ROWS, WIDTH)

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, dict[str, torch.Tensor]]:
        state = {name: buffer[: desc.num_reqs] for name, buffer in buffers.items()}

        def forward(mode: str) -> torch.Tensor:
            return hidden / state["seq_lens"][:, None] + state["slots"][:, None]

        return forward, state

    bench.capture_pair(
        create_forward_fn,
        Desc(ROWS, ROWS),
        persistent=lambda state: {"seq_lens": state["seq_lens"], "slots": state["slots"]},
        vary=[lambda: buffers["seq_lens"].copy_(bench.ints(1, 9, 2 * ROWS))],
    )


def statistics_are_shared(bench: Bench) -> None:
    """A counter of forwards is one object for all passes, and said to be shared."""
    stats, hidden = {"forwards": 0}, bench.randn(ROWS, WIDTH)

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, dict[str, Any]]:
        state: dict[str, Any] = {"stats": stats, "lengths": [WIDTH] * ROWS}

        def forward(mode: str) -> torch.Tensor:
            state["stats"]["forwards"] += 1
            return hidden.cumsum(0)

        return forward, state

    bench.capture_pair(
        create_forward_fn,
        Desc(ROWS, ROWS),
        persistent={"hidden": hidden},
        shared=["state['stats']"],
        vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))],
    )


def state_with_slots_and_a_cycle(bench: Bench) -> None:
    """The state is an object in slots whose owner refers back to it; each pass makes both anew."""
    lengths, hidden = bench.ints(1, 9, ROWS), bench.randn(ROWS, WIDTH)

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, _Node]:
        node = _Node(lengths)
        node.owner = types.SimpleNamespace(node=node, seen=[])
        return lambda mode: hidden * node.lengths[:, None], node

    bench.capture_pair(
        create_forward_fn,
        Desc(ROWS, ROWS),
        persistent={"lengths": lengths, "hidden": hidden},
        vary=[lambda: lengths.copy_(bench.ints(1, 9, ROWS))],
    )


def sampling_draws_anew(bench: Bench) -> None:
    """A captured sampler draws other tokens in every replay."""
    logits = bench.randn(ROWS, 64)

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, dict[str, Any]]:
        def forward(mode: str) -> torch.Tensor:
            noise = torch.empty_like(logits).exponential_()
            return (logits.softmax(-1) / noise).argmax(-1)

        return forward, {"num_reqs": desc.num_reqs}

    bench.capture_pair(
        create_forward_fn, Desc(ROWS, ROWS), persistent={"logits": logits}, rng=True
    )


def output_buffer_filled_by_rows(bench: Bench) -> None:
    """The static output is a view of a larger buffer, of which a small batch uses some rows."""
    hidden, out = bench.randn(ROWS, WIDTH), bench.zeros(16, WIDTH)

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, dict[str, Any]]:
        def forward(mode: str) -> None:
            out[: desc.num_reqs] = hidden.exp()

        return forward, {"rows": slice(0, desc.num_reqs)}

    bench.capture_pair(
        create_forward_fn,
        Desc(ROWS, ROWS),
        persistent={"hidden": hidden},
        outputs=lambda: out[:ROWS],
        vary=[lambda: hidden.copy_(bench.randn(ROWS, WIDTH))],
    )


def autotuned_in_the_warmup(bench: Bench) -> None:
    """The first warm-up tries two variants on the real inputs; the graph has the better one."""
    lengths, hidden = bench.ints(1, 9, ROWS), bench.randn(ROWS, WIDTH)
    chosen: list[Any] = []

    def by_division(x: torch.Tensor) -> torch.Tensor:
        return x / lengths[:, None]

    def by_reciprocal(x: torch.Tensor) -> torch.Tensor:
        return x * lengths.float().reciprocal()[:, None]

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, dict[str, torch.Tensor]]:
        def forward(mode: str) -> torch.Tensor:
            if not chosen:
                for variant in (by_reciprocal, by_division):
                    variant(hidden)
                chosen.append(by_division)
            done: torch.Tensor = chosen[0](hidden)
            return done

        return forward, {"lengths": lengths}

    bench.capture_pair(
        create_forward_fn,
        Desc(ROWS, ROWS),
        persistent={"lengths": lengths, "hidden": hidden},
        vary=[lambda: lengths.copy_(bench.ints(1, 9, ROWS))],
    )


def opaque_objects_in_the_state(bench: Bench) -> None:
    """Each state holds a lock, a weak reference, a cached property, a partial."""

    class Metadata:
        def __init__(self, lengths: torch.Tensor) -> None:
            self.lengths = lengths
            self.lock = threading.Lock()
            self.me = weakref.ref(self)
            self.scale = functools.partial(torch.mul, other=2.0)
            self.history: collections.deque[int] = collections.deque(maxlen=2)

        @functools.cached_property
        def inverse(self) -> torch.Tensor:
            return 1.0 / self.lengths

    lengths, hidden = bench.ints(1, 9, ROWS), bench.randn(ROWS, WIDTH)

    def create_forward_fn(desc: Desc, warmup: bool) -> tuple[Any, Metadata]:
        metadata = Metadata(lengths)

        def forward(mode: str) -> torch.Tensor:
            with metadata.lock:
                metadata.history.append(1)
                done: torch.Tensor = metadata.scale(hidden * metadata.inverse[:, None])
            return done

        return forward, metadata

    bench.capture_pair(
        create_forward_fn,
        Desc(ROWS, ROWS),
        persistent={"lengths": lengths, "hidden": hidden},
        vary=[lambda: lengths.copy_(bench.ints(1, 9, ROWS))],
    )


PROGRAMS = (
    kv_cache_in_the_state,
    immutable_objects_are_shared,
    descriptor_leaves_requests_open,
    one_plan_for_all_layers,
    persistent_by_a_function,
    statistics_are_shared,
    state_with_slots_and_a_cycle,
    sampling_draws_anew,
    output_buffer_filled_by_rows,
    autotuned_in_the_warmup,
    opaque_objects_in_the_state,
)
