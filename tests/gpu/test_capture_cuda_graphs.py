"""Real CUDA graphs: what a capture holds, that it replays, and what recording a warm-up tells."""

from __future__ import annotations

import gc
import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cudafork.process.forking.freeze_before_fork import resident_bytes
from tests.support.sessions import needs_torch

if TYPE_CHECKING:
    from pytest_cudafork.capture.cuda.backend import CudaBackend

pytestmark = [
    pytest.mark.gpu,
    needs_torch,
]
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    """A backend; afterwards the device has to be usable, whatever the test did."""
    import torch

    from pytest_cudafork.capture.cuda.backend import CudaBackend

    made = CudaBackend()
    assert made.why_not() is None
    yield made
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.ones(4, device="cuda").sum().item() == 4


class Lazy:
    """Metadata that fills its buffer at the first use, in FlashMLA's manner."""

    def __init__(self) -> None:
        self.plan: Any = None

    def __call__(self, lengths: Any) -> Any:
        import torch

        if self.plan is None:
            self.plan = torch.zeros_like(lengths)
            self.plan.add_(lengths)
            self.plan.mul_(2)
        return self.plan * lengths + 1


def names(nodes: Any) -> list[str]:
    assert nodes is not None
    return [node.name for node in nodes]


def test_a_graph_replays_what_eager_computes_and_lists_its_kernels_with_lines(
    backend: CudaBackend,
) -> None:
    import torch

    x = torch.arange(8.0, device="cuda")
    y = torch.zeros(8, device="cuda")

    def fn() -> Any:
        y.copy_(x * 3)
        return y + 1

    backend.record(fn)
    y.fill_(float("nan"))
    graph = backend.capture(fn)
    assert torch.isnan(y).all()  # nothing ran
    for start in (0.0, 5.0):
        x.copy_(torch.arange(8.0) + start)
        graph.replay()
        assert graph.recording.result.tolist() == (x * 3 + 1).tolist()
    nodes = graph.recording.nodes
    assert nodes is not None
    assert graph.recording.why_not == ""
    assert [node.kind for node in nodes] == ["kernel", "memcpy", "kernel"]
    assert "MulFunctor" in nodes[0].name
    assert "add" in nodes[2].name
    lines = [int(node.where.rpartition(":")[2]) for node in nodes]
    first = fn.__code__.co_firstlineno
    assert lines == [first + 1, first + 1, first + 2]
    assert all(Path(__file__).name in node.where for node in nodes)
    assert graph.findings == ()
    graph.reset()
    graph.reset()


def test_pools_of_graphs_that_are_gone_keep_no_device_memory(backend: CudaBackend) -> None:
    """As with ``torch.cuda.graph``, which empties the cache before it captures."""
    import torch

    x = torch.ones(16, 16, device="cuda")
    backend.record(lambda: torch.relu(x @ x))
    reserved = []
    for _ in range(40):
        backend.capture(lambda: torch.relu(x @ x)).replay()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] <= max(reserved[:5])


def test_pools_of_graphs_that_are_gone_keep_no_memory_of_the_host(backend: CudaBackend) -> None:
    """Each kept 49 KB of pinned memory before torch was asked for that, too."""
    import torch

    x = torch.ones(16, 16, device="cuda")
    backend.record(lambda: torch.relu(x @ x))
    for _ in range(100):
        backend.capture(lambda: torch.relu(x @ x)).replay()
    before = resident_bytes()
    for _ in range(300):
        backend.capture(lambda: torch.relu(x @ x)).replay()
    assert resident_bytes() - before < 300 * 20_000


def test_the_uses_say_what_the_graph_reads_writes_and_owns(backend: CudaBackend) -> None:
    import torch

    x, y = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")

    def fn() -> Any:
        made = x + 1
        y.add_(made)
        return made

    graph = backend.capture(fn)
    uses = {use.pointer: use for use in graph.recording.uses or ()}
    assert (uses[x.data_ptr()].reads, uses[x.data_ptr()].writes) == (True, False)
    assert uses[y.data_ptr()].writes
    assert not uses[x.data_ptr()].owned
    assert not uses[y.data_ptr()].owned
    assert uses[graph.recording.result.data_ptr()].owned
    assert uses[x.data_ptr()].node == 0
    assert uses[y.data_ptr()].node == 1
    assert uses[x.data_ptr()].tensor == "float32[4]"


def test_names_of_a_warm_up_and_of_its_graph_are_the_same(backend: CudaBackend) -> None:
    import torch

    a = torch.randn(64, 64, device="cuda")
    out = torch.empty(64, 64, device="cuda")

    def fn() -> Any:
        h = torch.relu(a @ a) + a.sum(0)
        out.copy_(torch.softmax(h, -1))
        return torch.cumsum(out, 0), torch.zeros(1000, device="cuda")

    backend.record(fn)
    recording = backend.record(fn)
    assert recording.nodes is not None, recording.why_not
    graph = backend.capture(fn)
    assert graph.recording.nodes is not None
    assert names(recording.nodes) == names(graph.recording.nodes)
    assert [node.where for node in recording.nodes] == [
        node.where for node in graph.recording.nodes
    ]


def test_a_lazy_initializer_shared_with_the_warm_up_is_missing_from_the_graph(
    backend: CudaBackend,
) -> None:
    import torch

    lengths = torch.arange(1.0, 5.0, device="cuda")
    shared = Lazy()
    warmup = backend.record(lambda: shared(lengths))
    aliased = backend.capture(lambda: shared(lengths))
    distinct = Lazy()
    right = backend.capture(lambda: distinct(lengths))
    assert len(warmup.nodes or ()) - len(aliased.recording.nodes or ()) == 3
    assert Counter(names(warmup.nodes)) == Counter(names(right.recording.nodes))
    missing = Counter(names(warmup.nodes)) - Counter(names(aliased.recording.nodes))
    assert sum(missing.values()) == 3
    lengths.mul_(2)
    right.replay()
    assert right.recording.result.tolist() == (2 * lengths * lengths + 1).tolist()
    aliased.replay()
    assert aliased.recording.result.tolist() != right.recording.result.tolist()


@needs_triton
def test_triton_kernels_are_named_and_have_lines(
    backend: CudaBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    (tmp_path / "own_kernels.py").write_text(
        "import triton\n"
        "import triton.language as tl\n"
        "@triton.jit\n"
        "def twice_kernel(x_ptr, y_ptr, N: tl.constexpr):\n"
        "    at = tl.arange(0, N)\n"
        "    tl.store(y_ptr + at, tl.load(x_ptr + at) * 2)\n"
        "def twice(x, y):\n"
        "    twice_kernel[(1,)](x, y, N=16)\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    import own_kernels  # type: ignore[import-not-found]

    x, y = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda")

    def fn() -> Any:
        own_kernels.twice(x, y)
        return y + 1

    warmup = backend.record(fn)
    graph = backend.capture(fn)
    for nodes in (warmup.nodes, graph.recording.nodes):
        assert nodes is not None
        assert nodes[0].name == "twice_kernel"
        assert nodes[0].where.endswith("own_kernels.py:8")
    x.fill_(4)
    graph.replay()
    assert graph.recording.result.tolist() == [9.0] * 16
    pointers = {use.pointer for use in graph.recording.uses or ()}
    assert {x.data_ptr(), y.data_ptr()} <= pointers


@pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None, reason="cuda-bindings is not installed"
)
def test_the_nodes_are_those_that_cuda_bindings_list(backend: CudaBackend) -> None:
    import torch

    driver = pytest.importorskip("cuda.bindings.driver")
    x = torch.randn(32, 32, device="cuda")
    torch.relu(x @ x)  # the library of the product is not made within a capture
    graph = backend.capture(lambda: (torch.relu(x @ x), torch.zeros(7, device="cuda")))
    assert graph.graph is not None
    raw = driver.CUgraph(graph.graph.raw_cuda_graph())
    _, _, count = driver.cuGraphGetNodes(raw, 0)
    _, handles, _ = driver.cuGraphGetNodes(raw, count)
    kinds = [int(driver.cuGraphNodeGetType(node)[1]) for node in handles]
    told = {"kernel": 0, "memcpy": 1, "memset": 2}
    assert [told[node.kind] for node in graph.recording.nodes or ()] == kinds


def test_a_graph_in_progress_can_be_counted_from_the_first_node_on(backend: CudaBackend) -> None:
    """Lines rest on it: the driver lists a graph while it grows, in the order of its making."""
    import torch

    x = torch.ones(4, device="cuda")

    def fn() -> list[Any]:
        return [x + 1, x * 2, x - 3, torch.exp(x)]

    nodes = backend.capture(fn).recording.nodes
    assert nodes is not None
    assert ["Mul" in node.name for node in nodes] == [False, True, False, False]
    assert "exp" in nodes[3].name


def test_random_numbers_advance_from_replay_to_replay(backend: CudaBackend) -> None:
    import torch

    graph = backend.capture(lambda: torch.rand(100, device="cuda"))
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(graph.recording.result.clone())
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_a_registered_generator_advances_and_another_one_is_named(backend: CudaBackend) -> None:
    import torch

    from pytest_cudafork.capture.cuda.backend import CudaBackend
    from pytest_cudafork.errors import CaptureFailedError

    own = torch.Generator("cuda").manual_seed(7)

    def fn() -> Any:
        return torch.rand(100, device="cuda", generator=own)

    graph = CudaBackend(generators=[own]).capture(fn)
    graph.replay()
    first = graph.recording.result.clone()
    graph.replay()
    assert not torch.equal(first, graph.recording.result)
    graph.reset()
    other = torch.Generator("cuda").manual_seed(7)
    with pytest.raises(CaptureFailedError) as caught:
        backend.capture(lambda: torch.rand(100, device="cuda", generator=other))
    assert Path(__file__).name in caught.value.finding.where
    assert "generator" in caught.value.finding.what
    torch.rand(4, device="cuda", generator=other)


def test_two_graphs_on_one_pool_replay_in_the_order_of_their_capture(backend: CudaBackend) -> None:
    import torch

    pool = backend.new_pool()
    x = torch.ones(1 << 20, device="cuda")
    first = backend.capture(lambda: x * 2, pool=pool)
    held = first.recording.result
    second = backend.capture(lambda: held + 1, pool=pool)
    for value in (3.0, 4.0):
        x.fill_(value)
        first.replay()
        second.replay()
        assert second.recording.result[0].item() == value * 2 + 1
    first.reset()
    second.replay()
    second.reset()


def test_memory_that_grows_with_no_capture_is_given_back(backend: CudaBackend) -> None:
    import torch

    x = torch.ones(1 << 20, device="cuda")

    def round_trip() -> None:
        backend.capture(lambda: x * 2 + 1).reset()

    round_trip()
    gc.collect()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    for _ in range(5):
        round_trip()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved


def test_a_training_step_captures_and_backward_has_lines(backend: CudaBackend) -> None:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    data = torch.randn(8, 16, device="cuda")

    def fn() -> Any:
        optimizer.zero_grad(set_to_none=False)
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    backend.record(fn)
    graph = backend.capture(fn)
    assert graph.findings == ()
    losses = []
    for _ in range(5):
        graph.replay()
        losses.append(graph.recording.result.item())
    assert losses == sorted(losses, reverse=True)
    nodes = graph.recording.nodes or ()
    assert all(node.where for node in nodes)
    backward = f":{fn.__code__.co_firstlineno + 3}"
    assert any(node.where.endswith(backward) for node in nodes)


def test_an_empty_function_is_an_empty_graph(backend: CudaBackend) -> None:
    graph = backend.capture(lambda: None)
    assert graph.recording.nodes == ()
    graph.replay()


def test_recording_runs_the_function_once_and_lets_its_exception_pass(
    backend: CudaBackend,
) -> None:
    import torch

    calls: list[int] = []
    x = torch.zeros(1, device="cuda")

    def fn() -> Any:
        calls.append(1)
        return x.add_(1)

    recording = backend.record(fn)
    assert (len(calls), x.item()) == (1, 1.0)
    assert recording.result is x

    def failing() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        backend.record(failing)
    assert backend.record(fn).nodes is not None
