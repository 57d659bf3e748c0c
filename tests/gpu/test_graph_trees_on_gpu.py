"""The graph trees of ``torch.compile(mode="reduce-overhead")`` under a look at captures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.specimens.plain_graphs.run import run_session

pytestmark = pytest.mark.gpu

TESTS = """
import torch


def test_compiled():
    weight = torch.randn(64, 64, device="cuda")
    compiled = torch.compile(lambda x: torch.relu(x @ weight) * 2, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(8, 64, device="cuda")
            torch.compiler.cudagraph_mark_step_begin()
            torch.testing.assert_close(compiled(x), torch.relu(x @ weight) * 2)


def test_trained_in_two_parts():
    torch.manual_seed(1)
    parts = [torch.nn.Linear(64, 64, device="cuda") for _ in range(2)]
    compiled = [torch.compile(part, mode="reduce-overhead") for part in parts]
    optimizer = torch.optim.SGD([each for part in parts for each in part.parameters()], lr=0.1)
    losses = []
    for _ in range(8):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.ones(8, 64, device="cuda")
        loss = compiled[1](torch.relu(compiled[0](x))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
"""


def test_its_captures_and_replays_are_seen_and_none_is_accused(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "test_compiled.py").write_text(TESTS, encoding="utf-8")
    told, output = run_session(tmp_path, "cuda", "--cuda-fork-captures=check")
    assert list(told.values()) == [""], output  # both tests stand under the name of their file
    assert re.search(r"^=+ 2 passed", output, re.MULTILINE), output
    seen = re.search(r"^looked at: (\d+) captures?, (\d+) replays?$", output, re.MULTILINE)
    assert seen is not None, output
    assert int(seen[1]) >= 1
    assert int(seen[2]) >= 1
    assert "suspicion" not in output
