"""The recorder: modes around captures, and what replays write."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from pytest_cudafork.capture import record  # noqa: E402
from pytest_cudafork.capture.cuda.memory import AllocatorMap  # noqa: E402
from pytest_cudafork.capture.interface.seen import SeenCapture  # noqa: E402
from pytest_cudafork.capture.record.recorder import REPLAY, Recorder, silently  # noqa: E402
from pytest_cudafork.capture.stand_ins.capturing import graphs  # noqa: E402
from pytest_cudafork.compat.torch_graphs.modes import count_modes  # noqa: E402
from tests.support.captures import looking  # noqa: E402


def test_a_replay_writes_what_the_graph_writes() -> None:
    with looking() as look:
        x, out = torch.ones(2), torch.zeros(2)
        captured = look.capture(lambda: out.copy_(x * 2))
        memory = look.history.memories.get(out)
        assert memory is not None
        version = memory.version
        captured.replay()
        assert memory.version == version + 1
        assert memory.where == REPLAY
        assert not look.history.paused


def test_modes_are_gone_whatever_becomes_of_a_capture() -> None:
    before = count_modes()
    with looking() as look:
        with pytest.raises(KeyError):
            look.capture(lambda: dict[str, int]()["x"])
        assert count_modes() == before + 1
        assert not look.history.paused
        graphs.CUDAGraph().capture_begin()
        graphs.end_open_captures()
        assert count_modes() == before + 1
    assert count_modes() == before
    recorder = Recorder(outside=False)
    with recorder.in_force():
        assert count_modes() == before


def test_the_hosts_numbers_of_a_graph_are_those_it_has_read_before() -> None:
    with looking() as look:
        lengths = torch.tensor([3, 7])
        longest = lengths.max().item()
        captured = look.capture(lambda: torch.ones(9) * longest)
        assert [each.value for each in captured.seen.uses.host] == [7]


def test_a_check_of_ours_makes_all_memory_unknown() -> None:
    with looking() as look:
        made = torch.tensor([1]) + 1
        with look.watching.watch.suspended():
            unseen: Any = torch.tensor([1]) + 1
        assert look.history.memories.get(unseen) is None
        memory = look.history.memories.get(made)
        assert memory is not None
        assert not memory.live


def test_silently_nobody_sees_operators() -> None:
    with looking() as look, silently():
        made: Any = torch.tensor([1]) + 1
        assert look.history.memories.get(made) is None
        assert not torch.is_grad_enabled()


def test_of_a_capture_within_another_one_nothing_is_known() -> None:
    recorder = Recorder()
    outer, inner = SeenCapture(1, "cuda", ""), SeenCapture(2, "cuda", "")
    before = count_modes()
    recorder.on_capture_begin(outer)
    recorder.on_capture_begin(inner)
    recorder.on_capture_closing(inner)
    recorder.on_capture_end(inner)
    recorder.on_replay_begin(inner)
    recorder.on_replay_end(inner, None)
    assert inner.uses is None
    assert count_modes() == before + 1
    recorder.on_capture_closing(outer)
    recorder.on_capture_end(outer)
    assert outer.uses is not None
    assert count_modes() == before


def test_operators_are_seen_once_it_is_said_that_they_are_of_interest() -> None:
    before, calls, undone = count_modes(), list[Any](), list[int]()

    def later(see: Any) -> Any:
        calls.append(see)
        return lambda: undone.append(1)

    recorder = Recorder()
    with recorder.in_force(later):
        assert count_modes() == before
        unseen = torch.tensor([1]) + 1
        calls[0]()
        assert count_modes() == before + 1
        seen = torch.tensor([1]) + 1
        assert recorder.history.memories.get(seen) is not None
        assert recorder.history.memories.get(unseen) is None
    assert undone == [1]
    assert count_modes() == before


def test_no_mode_is_put_on_within_one_of_the_user() -> None:
    class Users(TorchDispatchMode):  # type: ignore[misc]
        """One that is taken off before ours would be."""

    before, calls = count_modes(), list[Any]()

    def later(see: Any) -> Any:
        calls.append(see)
        return lambda: None

    with Recorder().in_force(later):
        with Users():
            calls[0]()
            assert count_modes() == before + 1
        assert count_modes() == before


def test_what_ran_before_operators_are_seen_is_missed() -> None:
    recorder, waiting = Recorder(), list[Any]()

    def later(see: Any) -> Any:
        waiting.append(see)
        return waiting.clear

    with recorder.in_force(later):
        assert not recorder.history.missed
        waiting[0]()
        assert recorder.history.missed
        made = torch.tensor([1]) + 1
    assert recorder.history.memories.get(made) is not None
    assert waiting == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own
def test_nothing_of_the_recorder_is_compiled_by_torch() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    compiled = torch.compile(step, backend="eager")
    with Recorder().in_force():
        for _ in range(2):
            compiled()
    from torch._dynamo.convert_frame import input_codes

    files = {code.co_filename for each in input_codes.seen if (code := each()) is not None}
    assert not [name for name in files if "/pytest_cudafork/" in name]
    assert __file__ in files


def test_work_that_passed_no_operator_leaves_a_capture_dark() -> None:
    recorder = Recorder()
    with recorder.in_force():
        capture = SeenCapture(1, "cuda", "")
        recorder.on_capture_begin(capture)
        capture.work = 3
        recorder.on_capture_closing(capture)
        recorder.on_capture_end(capture)
    assert capture.uses.not_seen == "the 3 kernels and copies in it passed no operator of torch"


def test_memory_of_the_graphs_pool_that_is_first_seen_as_an_argument_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, known = (0, 7), torch.ones(64)
    with silently():
        inside, outside = torch.ones(64), torch.ones(64)  # made past the dispatcher
    segments = [
        {"address": tensor.data_ptr(), "segment_pool_id": where,
         "blocks": [{"size": 256, "state": "inactive"}]}
        for tensor, where in ((inside, pool), (outside, (0, 8)), (known, pool))
    ]  # fmt: skip
    monkeypatch.setattr(record.recorder, "allocator_map", lambda: AllocatorMap(segments))
    recorder = Recorder()
    with recorder.in_force():
        known.add_(1)
        capture = SeenCapture(1, "software", "")
        recorder.on_capture_begin(capture)
        inside + outside + known
        capture.backend = "cuda"  # which would have been the host's work, on tensors of the CPU
        recorder.on_capture_closing(capture)
        capture.made(recorder, lambda graph: None, pool)
        recorder.on_capture_end(capture)
        uses, memories = capture.uses, recorder.history.memories
        owners = {}
        for name, each in (("inside", inside), ("outside", outside), ("known", known)):
            memory = memories.of(each)
            assert memory is not None
            owners[name] = memory.owner
    assert owners == {"inside": uses, "outside": None, "known": None}
    assert (inside.data_ptr(), inside.data_ptr() + 256) in uses.allocated
