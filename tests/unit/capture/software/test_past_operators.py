"""Code that goes past operators does by operators what it does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402


@pytest.mark.parametrize("kind", ["eager", "aot_eager"])
@pytest.mark.parametrize("warm", [False, True])
def test_compiled_functions_are_recorded_as_the_code_they_were_made_from(
    kind: str, warm: bool
) -> None:
    x = torch.randn(4)
    compiled = torch.compile(lambda x: (x * 2 + 1).relu(), backend=kind)
    if warm:
        compiled(x)
    backend = SoftwareBackend()
    graph = backend.capture(lambda: compiled(x) + 1)
    names = ["aten::mul", "aten::add", "aten::relu", "aten::add"]
    assert [node.name for node in graph.recording.nodes or ()] == names
    eager = backend.record(lambda: compiled(x) + 1)
    assert [node.name for node in eager.nodes or ()] == names
    x.copy_(torch.randn(4))
    graph.replay()
    assert torch.equal(graph.recording.result, (x * 2 + 1).relu() + 1)
    assert torch.allclose(compiled(x), (x * 2 + 1).relu())
