"""Code that calls ``torch.cuda.graph`` itself, in sessions without a GPU."""

from __future__ import annotations

import pytest

from tests.support.sessions import assert_no_crash, needs_torch, outcomes, run_session

pytestmark = needs_torch

MANAGER = """
import torch
from torch.cuda import CUDAGraph

class Manager:
    def __init__(self, device):
        self.model = torch.nn.Linear(4, 4, device=device)
        self.x = torch.zeros(2, 4, device=device)

    @torch.no_grad()
    def capture(self):
        torch.cuda.synchronize()
        self.graph = CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):
            self.model(self.x)
        with torch.cuda.graph(self.graph):
            self.out = self.model(self.x)
        return self

    def __call__(self):
        self.graph.replay()
        return self.out
"""

TESTS = """
import pytest, torch
from manager import Manager
from pytest_cudafork import assert_replay_equals_eager

@pytest.fixture(scope="module")
def captured():
    return Manager("cpu").capture()

def check(manager):
    assert_replay_equals_eager(torch.no_grad()(manager.model), [manager.x], replay=manager)

{marked}
def test_captured_in_a_fixture(captured):
    check(captured)

{marked}
def test_captured_in_the_test():
    check(Manager("cpu").capture())

@pytest.mark.spawn_only
def test_in_a_process_of_its_own():
    check(Manager("cpu").capture())

def test_fails():
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(2).sum().item()
"""

OWN = """
import pytest, torch
from manager import Manager
from pytest_cudafork import assert_replay_equals_eager

def test_asks_for_the_fixture(graph_backend):
    manager = Manager(graph_backend.device).capture()
    assert_replay_equals_eager(torch.no_grad()(manager.model), [manager.x], replay=manager)

def test_asks_for_none():
    with pytest.raises((RuntimeError, AssertionError)):
        Manager("cpu").capture()
"""

CUDA = """
import torch
from manager import Manager
from pytest_cudafork import assert_replay_equals_eager

def test_on_cuda(graph_backend):
    assert torch.cuda.is_available()
    manager = Manager("cuda").capture()
    assert manager.x.is_cuda and manager().device == torch.device("cuda", 0)
    assert torch.ones(1).pin_memory().is_pinned()
    assert_replay_equals_eager(torch.no_grad()(manager.model), [manager.x], replay=manager)
"""

CHECKED = """
import pytest, torch
from pytest_cudafork import GraphUsageError, assert_replay_equals_eager

def test_device_of_the_fixture(graph_backend):
    assert graph_backend.device == "cuda"
    x, factor = torch.ones(2, device=graph_backend.device), [2]
    graph = graph_backend.capture(lambda: x * 3)
    graph.replay()
    assert graph.recording.result.tolist() == [3, 3]

    def longer():
        factor[0] = 3

    assert_replay_equals_eager(lambda x: x * factor[0], [x], vary=[lambda: x.fill_(4)])
    with pytest.raises(AssertionError, match="it looks frozen"):
        assert_replay_equals_eager(lambda x: x * factor[0], [x], vary=[longer])

def test_pair(capture_pair, graph_backend):
    lengths = torch.tensor([1, 2], device=graph_backend.device)
    host = torch.tensor([1, 2])

    def factory(desc, warmup):
        state = {"lengths": lengths, "on the host": host.clone()}
        return lambda: state["lengths"] * 2, state

    capture_pair(factory, 2, persistent={"lengths": lengths}, vary=[lambda: lengths.fill_(3)])
    with pytest.raises(GraphUsageError, match="lie on 2 devices"):
        capture_pair(factory, 2, persistent={"lengths": lengths, "host": host})

def test_host(graph_backend):
    with pytest.raises(GraphUsageError, match="lies on cpu, and the graphs .* are on 'cuda'"):
        assert_replay_equals_eager(lambda x: x * 2, [torch.ones(2)])
"""


@pytest.mark.parametrize("marked", ["", "@pytest.mark.isolated(method='fork')"])
def test_under_the_option_all_phases_of_all_tests_capture_software_graphs(
    pytester: pytest.Pytester, marked: str
) -> None:
    pytester.makepyfile(manager=MANAGER, test_them=TESTS.format(marked=marked))
    result = run_session(pytester, "-v", "--cuda-fork-graphs=software", "--cuda-fork-check=touch")
    assert_no_crash(result)
    assert outcomes(result) == {
        "test_captured_in_a_fixture": "PASSED",
        "test_captured_in_the_test": "PASSED",
        "test_in_a_process_of_its_own": "PASSED",
        "test_fails": "FAILED",
    }
    result.stdout.fnmatch_lines(["E *[[]host-sync[]] item()*at test_them.py:*"])


def test_with_the_fixture_they_are_there_for_that_test_and_are_no_touches(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(manager=MANAGER, test_them=OWN)
    result = run_session(pytester, "-v", "-k", "fixture", "--cuda-fork-check=touch")
    assert_no_crash(result)
    assert outcomes(result) == {"test_asks_for_the_fixture": "PASSED"}
    result = run_session(pytester, "-v")
    assert_no_crash(result)
    assert set(outcomes(result).values()) == {"PASSED"}


def test_under_a_present_face_tensors_on_cuda_are_stand_ins(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(manager=MANAGER, test_them=CUDA)
    options = ("--cuda-fork-check=poison", "--cuda-fork-device=phantom:sm_90")
    result = run_session(pytester, "-v", *options)
    assert_no_crash(result)
    assert outcomes(result) == {"test_on_cuda": "PASSED"}


def test_under_a_present_face_the_fixture_gives_its_device_and_checks_know_it(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(CHECKED)
    options = ("--cuda-fork-check=poison", "--cuda-fork-device=phantom:sm_90")
    result = run_session(pytester, "-v", *options)
    assert_no_crash(result)
    assert set(outcomes(result).values()) == {"PASSED"}
    assert len(outcomes(result)) == 3


MADE_BY_TYPES = """
import pytest, torch

HELD = torch.cuda.FloatTensor, torch.Generator  # by names of their own, taken before any test

def test_types():
    for kind in (HELD[0], torch.cuda.FloatTensor):
        made = kind([1.0, 2.0])
        assert made.is_cuda and made.tolist() == [1, 2]
        assert torch.ones(2).type(kind).is_cuda
    assert torch.cuda.LongTensor(2, 3).shape == (2, 3)

def test_generators():
    first = HELD[1](device="cuda").manual_seed(3)
    second = torch.Generator(torch.device("cuda")).manual_seed(3)
    assert first.device == second.device == torch.device("cuda", 0)
    x = torch.empty(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(first)
    with torch.cuda.graph(graph):
        x.normal_(generator=first)
    for _ in range(2):
        graph.replay()
        assert torch.equal(x, torch.empty(8, device="cuda").normal_(generator=second))

def test_a_generator_that_is_not_registered():
    own, graph = torch.Generator(device="cuda"), torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="register_generator_state before the capture"):
        with torch.cuda.graph(graph):
            torch.rand(3, device="cuda", generator=own)
"""


STREAMS = """
import torch
from torch import nn

def test_streams():
    side, event = torch.Stream(device="cuda"), torch.Event(device="cuda")
    assert isinstance(torch.cuda.Stream(), torch.Stream) and isinstance(side, torch.cuda.Stream)
    x, graph = torch.ones(2, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        event.record()
        side.wait_event(event)
        with side:
            y = x * 2
        torch.accelerator.current_stream().wait_stream(side)
    graph.replay()
    assert y.tolist() == [2, 2]

def test_data_parallel():
    layer, x = nn.Linear(4, 4).cuda(), torch.arange(12.0).view(3, 4)
    with torch.no_grad():
        for each in layer.parameters():
            each.copy_(torch.arange(each.numel()).view_as(each))
    parallel = nn.DataParallel(layer)
    made = parallel(x)
    # Of whole numbers, as each replica has fewer rows, whose products may be rounded otherwise.
    assert made.is_cuda and torch.equal(made, layer(x.cuda()))
    made.sum().backward()
    assert layer.weight.grad.is_cuda
"""


@pytest.mark.parametrize("face", ["sm_90", "sm_90x2"])
@pytest.mark.parametrize(
    ("text", "tests"), [(MADE_BY_TYPES, 3), (STREAMS, 2)], ids=["types", "streams"]
)
def test_types_generators_streams_and_data_parallel_work_and_are_no_touches(
    pytester: pytest.Pytester, face: str, text: str, tests: int
) -> None:
    pytester.makepyfile(text)
    result = run_session(
        pytester, "-v", "--cuda-fork-captures", "--cuda-fork-graphs=software",
        "--cuda-fork-check=poison", f"--cuda-fork-device=phantom:{face}",
    )  # fmt: skip
    assert_no_crash(result)
    assert list(outcomes(result).values()) == ["PASSED"] * tests
    touching = [line for line in result.outlines if "in test_" in line and "test_them" in line]
    assert all("test_data_parallel" in line for line in touching)  # it asks how many GPUs there are


def test_what_a_fixture_of_a_module_holds_lies_on_its_gpu_in_each_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        manager=MANAGER,
        test_them="""
        import pytest, torch
        from manager import Manager

        @pytest.fixture(scope="module")
        def captured():
            return Manager("cuda").capture()

        @pytest.mark.parametrize("times", [1, 2, 3])
        def test_each(captured, times):
            x, graph = torch.zeros(2, 4, device=captured.x.device), torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(graph):
                mine = captured.model(x)
            captured.x.fill_(times)
            x.copy_(captured.x.cpu())
            graph.replay()
            assert torch.equal(captured(), mine)
            assert captured.x.is_cuda and captured.out.is_cuda
        """,
    )
    result = run_session(
        pytester, "--cuda-fork-captures", "--cuda-fork-graphs=software",
        "--cuda-fork-check", "--cuda-fork-device=phantom:sm_90",
    )  # fmt: skip
    assert_no_crash(result)
    result.assert_outcomes(passed=3)
