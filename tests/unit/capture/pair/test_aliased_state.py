"""The check aliased-state: no mutable object is in both states."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import CapturePairError  # noqa: E402
from tests.support.capture import Desc  # noqa: E402
from tests.support.capture_pair import Meta, Runner, State, findings  # noqa: E402


def test_a_shared_state_is_named_with_its_field_values_line_and_kernels() -> None:
    runner = Runner(keep=lambda warmup: "one")
    with pytest.raises(CapturePairError) as caught:
        runner.check()
    text = " ".join(str(caught.value).split())
    assert "[lazy-init-skipped] state.attn_metadata['layers.0'].plan" in text
    assert "(None -> float32[4] [1.0, 0.5, 0.25, 0.125])" in text
    assert "> meta.plan = 1.0 / meta.seq_lens.float()" in text
    assert "> meta.ready = True" in text
    assert "3 kernels of the warm-up are missing from the graph" in text
    assert "create_forward_fn(desc, warmup=False)" in text
    found = {(one.check, one.path) for one in caught.value.findings}
    assert ("aliased-state", "state.attn_metadata") in found
    assert ("replay-differs", "output") in found


def test_only_the_inner_object_is_shared() -> None:
    meta = Meta(torch.tensor([1, 2, 4, 8]))

    class Inner(Runner):
        def build(self, desc: Desc) -> State:
            meta.seq_lens = self.lens
            return State({"layers.0": meta}, {"layers.0": self.slots})

    found = findings(Inner().check)
    assert found["aliased-state"] == ["state.attn_metadata['layers.0']"]
