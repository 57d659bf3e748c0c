"""``torch.cuda.CUDAGraph`` and ``graph`` on the software graph: what they capture and refuse."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.stand_ins.capturing import graphs, streams  # noqa: E402
from pytest_cudafork.capture.stand_ins.capturing.random_numbers import Generator  # noqa: E402
from pytest_cudafork.capture.story import remarks  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError, GraphNotJudgedError, ReplayFailedError  # noqa: E402


def test_a_capture_happens_at_replays_only() -> None:
    x, made = torch.ones(2), graphs.CUDAGraph()
    assert not graphs.is_current_stream_capturing()
    with graphs.graph(made):
        y = x * 2
        assert graphs.is_current_stream_capturing()
    assert not graphs.is_current_stream_capturing()
    made.replay()
    assert y.tolist() == [2, 2]
    x.fill_(3)
    made.instantiate()
    made.replay()
    assert y.tolist() == [6, 6]
    made.reset()
    made.reset()
    with pytest.raises(RuntimeError, match="CUDAGraph::replay without a preceding successful"):
        made.replay()


def test_graphs_share_the_memory_of_a_pool() -> None:
    pool = graphs.graph_pool_handle()
    addresses = []
    for _ in range(2):
        made = graphs.CUDAGraph()
        with graphs.graph(made, pool=pool):
            addresses.append((torch.ones(1000) * 2).data_ptr())  # gone, so lent again
        assert made.pool() is pool
    assert addresses[0] == addresses[1]


def test_a_memory_pool_of_torch_has_the_memory_of_captures_as_its_id() -> None:
    pool, made = graphs.MemPool(use_on_oom=False), graphs.CUDAGraph()
    with graphs.use_mem_pool(pool):
        x = torch.ones(2)
    with graphs.graph(made, pool=pool.id):
        x.add_(1)
    assert made.pool() is pool.id
    with pytest.raises(GraphNotJudgedError, match="allocator"):
        graphs.MemPool(object())


def test_what_cannot_be_captured_is_told_with_its_line_and_the_graph_stays_empty() -> None:
    x, made = torch.ones(2), graphs.CUDAGraph()
    with pytest.raises(CaptureFailedError) as failure, graphs.graph(made):
        x.sum().item()
    text = str(failure.value)
    assert "[host-sync] item()" in text
    assert "> x.sum().item()" in text
    assert "what to do: keep the value on the device" in text
    assert failure.value.__cause__ is failure.value.__context__ is None  # it is told once
    shown = failure.traceback.filter(failure)
    assert {str(entry.path) for entry in shown} == {__file__}
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        made.pool()
    with graphs.graph(made):
        x.add_(1)
    made.replay()
    assert x.tolist() == [2, 2]


def test_a_refusal_that_is_swallowed_fails_at_the_end() -> None:
    made = graphs.CUDAGraph()
    made.capture_begin()
    with pytest.raises(CaptureFailedError):
        bool(torch.ones(1) > 0)
    with pytest.raises(CaptureFailedError, match=r"\[host-sync\]"):
        made.capture_end()
    assert not graphs.is_current_stream_capturing()


def test_an_error_of_the_code_passes() -> None:
    with pytest.raises(ZeroDivisionError), graphs.graph(graphs.CUDAGraph()):
        1 / 0  # noqa: B018
    assert not graphs.is_current_stream_capturing()


def test_what_the_backend_cannot_do_is_no_verdict() -> None:
    with pytest.raises(GraphNotJudgedError, match="no streams and events") as failure:  # noqa: SIM117
        with graphs.graph(graphs.CUDAGraph()) as _:
            torch.cuda.Stream().wait_stream(torch.cuda.current_stream())
    assert failure.value.findings[0].check == "not-judged"


def test_wrong_use_is_refused_as_torch_does() -> None:
    made = graphs.CUDAGraph(keep_graph=True)
    with pytest.raises(RuntimeError, match="without a capture_begin"):
        made.capture_end()
    for wrong, words in (
        ((7,), "graph_pool_handle"),
        ((made,), "what its pool"),
        ((None, "x"), "error mode"),
    ):
        with pytest.raises((TypeError, RuntimeError), match=words):
            made.capture_begin(*wrong)
    with pytest.raises(TypeError, match=r"give a torch\.cuda\.CUDAGraph"):
        graphs.graph(object())  # type: ignore[arg-type]
    with graphs.graph(made):
        with pytest.raises(CaptureFailedError, match="begun within a capture"):
            graphs.CUDAGraph().capture_begin()
        with pytest.raises(RuntimeError, match="already owns"):
            made.capture_begin()


def test_a_capture_is_ended_by_the_thread_that_began_it() -> None:
    made, errors = graphs.CUDAGraph(), []

    def end() -> None:
        try:
            made.capture_end()
        except RuntimeError as error:
            errors.append(str(error))

    made.capture_begin(capture_error_mode="relaxed")
    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    made.capture_end()
    assert errors == ["a capture must be ended by the thread that began it"]


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_other_threads_may_work_where_cuda_lets_them(mode: str) -> None:
    done = []

    def work() -> None:
        with contextlib.suppress(CaptureFailedError):
            done.append((torch.ones(2) * 3).tolist())

    made = graphs.CUDAGraph()
    made.capture_begin(capture_error_mode=mode)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if mode == "global":
        with pytest.raises(CaptureFailedError, match=r"runs\s+in\s+thread"):
            made.capture_end()
    else:
        made.capture_end()
        assert done == [[3, 3]]


def test_the_driver_s_own_things_are_refused_by_name(tmp_path: Path) -> None:
    x, made = torch.ones(2), graphs.CUDAGraph()
    with graphs.graph(made, check_input_liveness=True, annotations=None):
        x.add_(1)
    for call in (made.raw_cuda_graph, made.raw_cuda_graph_exec, made.get_graph_data):
        with pytest.raises(GraphNotJudgedError, match=call.__name__):
            call()
    with pytest.raises(GraphNotJudgedError, match=r"torch\.cuda\.graph\(new=\)"):  # noqa: SIM117
        with graphs.graph(graphs.CUDAGraph(), new=True):
            pass
    made.register_generator_state(torch.default_generator)
    with pytest.raises(GraphNotJudgedError, match="register_generator_state"):
        made.register_generator_state(torch.Generator())
    made.enable_debug_mode()
    made.debug_dump(str(tmp_path / "nodes"))
    assert (tmp_path / "nodes").read_text().startswith("op aten::add_ ")


def test_a_replay_that_would_read_freed_memory_is_refused() -> None:
    x, made = torch.ones(2), graphs.CUDAGraph()
    with graphs.graph(made):
        y = x * 2
    del x
    with pytest.raises(ReplayFailedError, match="freed"):
        made.replay()
    del y


def test_what_a_capture_that_succeeds_has_to_say_is_kept_for_the_report() -> None:
    remarks.take()
    with graphs.graph(graphs.CUDAGraph()):
        torch.empty(3) + 1
    (told,) = remarks.take()
    assert told.startswith("[uninitialized-read] aten::add reads float32[3]")


def test_captures_that_nobody_ends_are_ended() -> None:
    made = graphs.CUDAGraph()
    made.capture_begin()
    torch.ones(2) * 2
    (told,) = graphs.end_open_captures()
    assert told.startswith("a capture that was begun by capture_begin() was never ended; its last ")
    assert f"{Path(__file__).name}:" in told
    assert graphs.end_open_captures() == []
    assert not graphs.is_current_stream_capturing()


def test_one_that_nobody_ends_is_told_though_it_was_refused() -> None:
    graphs.CUDAGraph().capture_begin()
    with pytest.raises(CaptureFailedError):
        torch.ones(2).sum().item()
    (told,) = graphs.end_open_captures()
    assert "was never ended" in told
    assert not graphs.is_current_stream_capturing()


def test_a_graph_of_any_accelerator_captures_the_current_stream() -> None:
    x, pool, side = torch.ones(2), graphs.graph_pool_handle(), streams.Stream()
    made = graphs.AcceleratorGraph(pool=pool, capture_error_mode="thread_local")
    with side, made:
        assert graphs.is_current_stream_capturing()
        assert streams.current_stream() == side
        y = x * 2
    made.replay()
    assert y.tolist() == [2, 2]
    assert made.pool() is pool
    made.reset()
    with made:
        y = x * 3
    made.replay()
    assert y.tolist() == [3, 3]
    with pytest.raises(ZeroDivisionError), graphs.AcceleratorGraph():
        raise ZeroDivisionError
    assert not graphs.is_current_stream_capturing()


def test_a_generator_on_a_gpu_is_registered_and_one_of_the_host_is_refused() -> None:
    made = graphs.CUDAGraph()
    own, same = Generator(), Generator()
    made.register_generator_state(own)
    for each in (own, same):
        each.manual_seed(3)
    with graphs.graph(made):
        x = torch.randn(3, generator=own)
        y = torch.ones(3).uniform_(generator=own)
    for _ in range(2):
        made.replay()
        assert torch.equal(x, torch.randn(3, generator=same))
        assert torch.equal(y, torch.ones(3).uniform_(generator=same))
    with pytest.raises(GraphNotJudgedError, match="lies on no GPU"):
        made.register_generator_state(torch.Generator())
