"""What there was before a run is put back."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.replay.subject import Before, Subject  # noqa: E402
from pytest_cudafork.capture.state.reach import Reachable  # noqa: E402


class Code(Subject):
    """Code with an input, a weight and a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.weight = torch.zeros(2), torch.ones(2)
        self.generator = torch.Generator()

    def eager(self) -> Any: ...
    def replay(self) -> Any: ...
    def outputs(self) -> Any: ...
    def after_change(self, stimulus: Any) -> None: ...

    def inputs(self) -> dict[str, Any]:
        return {"x": self.x}

    def reach(self) -> Reachable:
        return Reachable({"weight": self.weight}, [self.generator])

    def moved(self) -> set[str]:
        return set()


def test_inputs_reachable_memory_and_random_numbers_are_put_back() -> None:
    code = Code()
    before = Before.of(code, cuda=False)
    first = torch.rand(2, generator=code.generator), torch.rand(2)
    assert before.randomness.has_advanced()
    code.x += 1
    code.weight += 1
    assert before.changed() == {"x", "weight"}
    before.restore()
    assert before.changed() == set()
    assert (code.x.tolist(), code.weight.tolist()) == ([0, 0], [1, 1])
    again = torch.rand(2, generator=code.generator), torch.rand(2)
    assert [torch.equal(a, b) for a, b in zip(first, again, strict=True)] == [True, True]


def test_a_subject_knows_nothing_beside_unless_it_says_so() -> None:
    code = Code()
    assert code.reachable() == {"weight": code.weight}
    assert (code.clues(), code.written, code.scratch, code.graph) == ("", {}, {}, None)
