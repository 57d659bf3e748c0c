"""What tests of ``capture_pair`` share: a factory that initializes lazily, as vLLM's does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import CapturePairError  # noqa: E402
from pytest_cudafork.capture.pair.capture_pair import CapturedPair, capture_pair  # noqa: E402
from tests.support.capture import Desc, Mode  # noqa: E402


@dataclass
class Meta:
    """Metadata that the first forward completes."""

    seq_lens: Any
    plan: Any = None
    ready: bool = False


class State(NamedTuple):
    """As vLLM's AttentionState."""

    attn_metadata: dict[str, Any]
    slot_mappings: dict[str, Any]


def attend(x: Any, meta: Meta) -> Any:
    """Initialize lazily, and use it."""
    if not meta.ready:
        meta.plan = 1.0 / meta.seq_lens.float()
        meta.ready = True
    return x * meta.plan[:, None]


class Runner:
    """Buffers and a factory; ``keep`` hands the warm-up's state to the capture, too."""

    def __init__(self, keep: Callable[[bool], Any] = lambda warmup: object()) -> None:
        self.lens = torch.tensor([1, 2, 4, 8])
        self.x = torch.randn(4, 3)
        self.slots = torch.arange(4)
        self.keep = keep
        self.states: dict[Any, State] = {}
        self.calls: list[Any] = []

    def create(self, desc: Desc, warmup: bool) -> Any:
        key = self.keep(warmup)
        if key not in self.states:
            self.states[key] = self.build(desc)
        state = self.states[key]

        def forward(mode: Mode) -> Any:
            self.calls.append(mode)
            return attend(self.x, state.attn_metadata["layers.0"])

        return forward, state

    def build(self, desc: Desc) -> State:
        return State({"layers.0": Meta(self.lens[: desc.num_reqs])}, {"layers.0": self.slots})

    def check(self, create: Any = None, **options: Any) -> CapturedPair:
        options.setdefault("persistent", {"seq_lens": self.lens, "x": self.x})
        options.setdefault("vary", [lambda: self.lens.copy_(torch.tensor([8, 4, 2, 1]))])
        return capture_pair(create or self.create, Desc(4), backend="software", **options)


def findings(run: Callable[[], Any]) -> dict[str, list[str]]:
    """Return the paths of what was found, by check."""
    with pytest.raises(CapturePairError) as caught:
        run()
    found: dict[str, list[str]] = {}
    for one in caught.value.findings:
        found.setdefault(one.check, []).append(one.path)
        assert f"[{one.check}]" in str(caught.value)
    return found
