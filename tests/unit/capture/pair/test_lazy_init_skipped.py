"""The check lazy-init-skipped: the capture initializes what the warm-up has."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import CapturePairError  # noqa: E402
from tests.support.capture import Desc, Mode  # noqa: E402
from tests.support.capture_pair import Runner  # noqa: E402


def test_a_flag_that_survives_elsewhere_is_an_initialization_that_is_skipped() -> None:
    done: list[bool] = []

    class Flag(Runner):
        def create(self, desc: Desc, warmup: bool) -> Any:
            state = self.build(desc)

            def forward(mode: Mode) -> Any:
                meta = state.attn_metadata["layers.0"]
                if not done:
                    meta.plan = 1.0 / meta.seq_lens.float()
                    done.append(True)
                return self.x * (1.0 if meta.plan is None else meta.plan[:, None])

            return forward, state

    runner = Flag()
    with pytest.raises(CapturePairError, match="the capture does not set it") as caught:
        runner.check()
    paths = {one.path for one in caught.value.findings if one.check == "lazy-init-skipped"}
    assert "state.attn_metadata['layers.0'].plan" in paths


def test_a_buffer_that_the_capture_does_not_write_is_found() -> None:
    runner = Runner()

    def create(desc: Any, warmup: bool) -> Any:
        state = {"table": torch.zeros(4, 1), "flags": {}}

        def forward(mode: Any) -> Any:
            if warmup:
                state["table"].fill_(2.0)
            return runner.x * state["table"]

        return forward, state

    with pytest.raises(CapturePairError) as caught:
        runner.check(create)
    found = {one.path: one.what for one in caught.value.findings if one.check.startswith("lazy")}
    assert "no work in the graph writes it" in found["state['table']"]
