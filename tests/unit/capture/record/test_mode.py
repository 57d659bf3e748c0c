"""The mode that sees operators: whose it takes, and whose it lets pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from pytest_cudafork.capture.interface.seen import SeenCapture  # noqa: E402
from pytest_cudafork.capture.record.history import History  # noqa: E402
from pytest_cudafork.capture.record.mode import HistoryMode  # noqa: E402
from pytest_cudafork.capture.record.uses import GraphUses  # noqa: E402
from pytest_cudafork.capture.stand_ins.tensors.cuda_tensors import CudaTensors  # noqa: E402
from pytest_cudafork.compat.torch_graphs.operators import CPU_KEYS, CUDA_KEYS  # noqa: E402
from tests.support.captures import looking  # noqa: E402


def test_a_paused_history_sees_nothing() -> None:
    history = History()
    with HistoryMode(history), history.pause():
        made = torch.tensor([1]) + 1
    assert history.memories.get(made) is None


class Wrapped(Tensor):  # type: ignore[misc]  # torch is not followed
    """Holds a tensor, and says so to whoever asks it for its operators."""

    inner: Any

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [each.inner if isinstance(each, cls) else each for each in args]
        return cls(op(*plain, **(kwargs or {})))


def test_subclasses_are_asked_first_and_fake_tensors_pass() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Tagged(Tensor):  # type: ignore[misc]  # torch is not followed
        pass

    history = History()
    with HistoryMode(history):
        with FakeTensorMode():
            fake = torch.ones(3) + 1
        tagged = torch.ones(2).as_subclass(Tagged)
        wrapped = Wrapped(torch.tensor([1, 2]))
        assert (tagged + 1).tolist() == [2.0, 2.0]
        assert (wrapped + 1).inner.tolist() == [2, 3]
    assert fake.shape == (3,)


def test_what_the_host_does_within_a_capture_is_no_part_of_the_graph() -> None:
    with CudaTensors(), looking() as look:
        x, lengths = torch.ones(4, device="cuda"), torch.tensor([3, 2])
        held = {"lengths": lengths.clone()}

        def work() -> Any:
            scratch = torch.empty(2)
            scratch[0] = held["lengths"].add_(1).sum()
            return x * scratch[0].item()

        captured = look.capture(work)
        uses = captured.seen.uses
        known = [look.history.memories.get(each) for each in (x, lengths, held["lengths"])]
        assert list(uses.reads) == known[:1]
        assert (list(uses.writes), uses.unfilled, uses.work) == ([], [], 1)
        held.clear()
        captured.replay()
        assert look.kinds() == []
        assert captured.replay().tolist() == [7.0] * 4


def test_where_a_gpu_captures_tensors_of_the_cpu_are_the_hosts() -> None:
    history, x = History(), torch.ones(2)
    with HistoryMode(history, SeenCapture(1, "cuda", "")):
        history.uses = uses = GraphUses(0)
        (x + 1).mul_(torch.arange(2))
        assert (uses.work, list(uses.reads)) == (0, [])
        meta = torch.empty(2, device="meta") * 2  # lies elsewhere
        assert uses.work == 1
    assert meta.is_meta


def test_parameters_are_tensors() -> None:
    history = History()
    with HistoryMode(history):
        parameter = torch.nn.Parameter(torch.ones(2))
        made = parameter + torch.tensor([1, 2])
        made.sum().backward()
    assert history.memories.get(made.detach()) is not None
    assert parameter.grad is not None


def test_operators_of_functions_run_and_make_a_capture_dark() -> None:
    def branch(x: Any) -> Any:
        return x + 1

    with looking() as look:
        x, chosen = torch.ones(3), torch.tensor(True)
        result = torch.ops.higher_order.cond(chosen, branch, branch, (x,))
        assert result.tolist() == [2.0] * 3
        captured = look.capture(lambda: torch.vmap(branch)(x))
    assert captured.seen.uses.not_seen == ""


class OnGpu(Tensor):  # type: ignore[misc]  # torch is not followed
    """A tensor that says that it lies on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("given", [lambda x: x, lambda x: [torch.ones(1), x]])
@pytest.mark.parametrize("named", [False, True])
def test_a_custom_operator_of_python_runs_where_its_tensors_lie(given: Any, named: bool) -> None:
    operator: Any = SimpleNamespace(redispatch=lambda keys, *args, **kwargs: keys)
    value = given(torch.ones(1).as_subclass(OnGpu))
    args, kwargs = ((), {"x": value}) if named else ((value,), {})
    assert HistoryMode(History())._open(operator, args, kwargs) is CUDA_KEYS
    assert HistoryMode(History())._open(operator, (torch.ones(1), 2), {}) is CPU_KEYS


def test_custom_operators_of_python_are_opened() -> None:
    def plain(x: Tensor) -> Tensor:
        return x * 2

    twice = torch.library.custom_op("cudafork_tests::twice", plain, mutates_args=())

    history = History()
    with HistoryMode(history):
        made = twice(torch.tensor([1, 2]))
    memory = history.memories.get(made)
    assert memory is not None
    assert memory.writes[0].operation.run._schema.name == "aten::mul"


def test_in_inference_mode_composites_come_whole_and_may_copy() -> None:
    with looking() as look, torch.inference_mode():
        x = torch.arange(6).view(2, 3)
        turned = x.t().reshape(6)
        memory = look.history.memories.get(turned)
        assert memory is not None
        assert memory.live
        captured = look.capture(lambda: x.float() + x.t().reshape(6).sum())
        assert len(captured.seen.uses.reads) == 1  # what it made by the way is its own


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_of_every_kind_pass() -> None:
    history = History(everything=True)
    with HistoryMode(history):
        for layout in (torch.strided, torch.jagged):
            nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=layout)
            assert [each.tolist() for each in (nested * 2).unbind()] == [[2.0] * 3, [2.0] * 2]
        assert (torch.eye(2).to_sparse() * 2).to_dense()[1, 1] == 2
        doubled = torch.vmap(lambda x: x.cumsum(0) * 2)(torch.arange(4).view(2, 2))
        assert doubled.tolist() == [[0, 2], [4, 10]]
        assert torch.func.grad(lambda x: (x**2).sum())(torch.ones(2)).tolist() == [2.0, 2.0]
        assert torch.zeros(0).sum() == 0


class Marked(Tensor):  # type: ignore[misc]  # torch is not followed
    """A subclass that leaves its operators to torch."""


class Weight(torch.nn.Parameter):  # type: ignore[misc]
    """A parameter as serving engines have them, with attributes of their own."""


@pytest.mark.parametrize("kind", [Tensor, Marked, Weight])
def test_the_data_of_subclasses_that_leave_operators_to_torch_are_seen(kind: Any) -> None:
    tensor = torch.ones(3).as_subclass(Marked) if kind is Marked else torch.ones(3)
    tensor = Weight(tensor) if kind is Weight else tensor
    with HistoryMode(History()):
        assert tensor.data.sum() == 3


def test_a_lazy_module_is_moved_and_made() -> None:
    with HistoryMode(History()):
        module = torch.nn.Sequential(torch.nn.LazyLinear(2), torch.nn.LazyBatchNorm1d()).double()
        assert module.eval()(torch.ones(4, 3, dtype=torch.float64)).shape == (4, 2)
