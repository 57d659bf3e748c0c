"""What CUDA refuses while a stream is capturing, the software graph refuses, naming the line."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from pytest_cudafork.capture.interface.lines import place, shown  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError  # noqa: E402

CPU = torch.device("cpu")
X = torch.arange(4.0)
LONG = torch.tensor([1, 1])
OUTSIDE = torch.zeros(())
SPARSE = torch.eye(3).to_sparse()


def _assign(x: Any, mask: Any, value: Any) -> Any:
    made = x * 1
    made[mask] = value
    return made


def _number_where_a_device_is_set(x: Any) -> Any:
    with torch.device(x.device):
        return x + torch.tensor(2.0)


_AS_THE_TRANSFORMS = (
    "def starts(x): return [int(at) for at in torch.tensor((2, 3)).cumsum(0).neg()]"
)


def _sizes_that_torch_adds_up(x: Any) -> Any:
    """As ``jacrev`` and ``hessian`` of torch 2.11 do."""
    module: dict[str, Any] = {"torch": torch, "__name__": "torch._functorch.eager_transforms"}
    exec(_AS_THE_TRANSFORMS, module)
    assert module["starts"](x) == [-2, -5]
    return x + 1


REFUSED: dict[str, Callable[[Any], Any]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "if": lambda x: x if x.sum() > 0 else -x,
    "int": lambda x: int(x[0]),
    "float": lambda x: float(x[0]),
    "index": lambda x: list(range(9))[x[1].long()],
    "tolist": lambda x: x.tolist(),
    "len of a list": lambda x: len(x.tolist()),
    "numpy": lambda x: x.numpy(),
    "np.asarray": lambda x: np.asarray(x),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu"),
    "to a cpu device": lambda x: x.to(torch.device("cpu")),
    "to cpu by name": lambda x: x.to(device="cpu", dtype=torch.float64),
    "torch.tensor": lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "torch.tensor on a device": lambda x: x + torch.tensor(1.0, device=CPU),
    "a number to the device": lambda x: x * torch.tensor(1.0).to(x.device),
    "as_tensor": lambda x: x + torch.as_tensor([1.0] * 4),
    "asarray": lambda x: x + torch.asarray([1.0] * 4),
    "from_numpy": lambda x: x + torch.from_numpy(np.ones(4)),
    "frombuffer": lambda x: torch.frombuffer(bytearray(4), dtype=torch.uint8),
    "new_tensor": lambda x: x.new_tensor([1.0]),
    "legacy constructor": lambda x: torch.Tensor([1.0, 2.0]),
    "a list as index": lambda x: x[[0, 1]],
    "repr": repr,
    "str": str,
    "print": lambda x: print(x, file=sys.stderr),  # noqa: T201
    "format": lambda x: f"{x[0]:.2f}",
    "nonzero": lambda x: x.nonzero(),
    "where with one argument": lambda x: torch.where(x > 1),
    "masked select": lambda x: x.masked_select(x > 1),
    "mask": lambda x: x[x > 1],
    "mask, several values": lambda x: x.clone().__setitem__(x > 1, x[:2]),
    "mask, a value on the device": lambda x: _assign(x, x > 1, torch.zeros(())),
    "mask, one of several": lambda x: _assign(x, x > 1, torch.ones(4)[:1]),
    "mask, a value from outside": lambda x: _assign(x, x > 1, OUTSIDE),
    "mask, index_put_": lambda x: (x * 1).index_put_((x > 1,), OUTSIDE),
    "mask, index_put": lambda x: torch.index_put(x, (x > 1,), x.sum()),
    "mask, added": lambda x: (x * 1).index_put_((x > 1,), torch.tensor(1.0), accumulate=True),
    "mask and index": lambda x: x.view(2, 2).index_put_((x[:2] > 9, LONG[0]), torch.tensor(1.0)),
    "unique": lambda x: x.unique(),
    "unique consecutive": lambda x: x.unique_consecutive(),
    "repeat interleave": lambda x: x.repeat_interleave(x.long()),
    "repeat interleave of counts": lambda x: torch.repeat_interleave(x.long()),
    "repeat interleave by a number": lambda x: x.repeat_interleave(LONG[1]),
    "tensor_split": lambda x: x.tensor_split(LONG),
    "tensor_split by a number": lambda x: torch.tensor_split(x, LONG[1]),
    "tensor_split by name": lambda x: x.tensor_split(tensor_indices_or_sections=LONG),
    "split": lambda x: x.split(LONG[1]),
    "split by a list of tensors": lambda x: torch.split(x[:2], [LONG[1], LONG[1]]),
    "chunk": lambda x: x.chunk(LONG[1]),
    "arange": lambda x: torch.arange(LONG[1]),
    "full": lambda x: torch.full((2,), x[0]),
    "full_like": lambda x: torch.full_like(x, x[0]),
    "a size": lambda x: torch.zeros(LONG[1]),
    "linspace": lambda x: torch.linspace(x[0], x[1], 3),
    "range": lambda x: range(LONG[1]),
    "slice": lambda x: x[: LONG[1]],
    "narrow": lambda x: x.narrow(0, LONG[0], 1),
    "expand": lambda x: x.expand(LONG[1], 4),
    "repeat": lambda x: x.repeat(LONG[1]),
    "pad": lambda x: torch.nn.functional.pad(x, (0, LONG[1])),
    "alpha": lambda x: torch.add(x, x, alpha=x[0]),
    "histc without a range": lambda x: torch.histc(x, 4),
    "pack": lambda x: torch.nn.utils.rnn.pack_padded_sequence(x.view(2, 2, 1), LONG + 1),
    "equal": lambda x: torch.equal(x, x + 1),
    "allclose": lambda x: torch.allclose(x, x + 1),
    "is_nonzero": lambda x: torch.is_nonzero(x[0]),
    "in": lambda x: 1.0 in x,
    "bincount": lambda x: x.long().bincount(),
    "one hot of unknown size": lambda x: torch.nn.functional.one_hot(x.long()),
    "to the place of a tensor": lambda x: x + torch.tensor(2.0).to(x),
    "the type of a tensor": lambda x: x + torch.tensor(2.0).type_as(x),
    "a number copied in": lambda x: x.copy_(torch.tensor(2.0)),
    "a number where a device is set": lambda x: _number_where_a_device_is_set(x),
    "a deviation": lambda x: torch.normal(0.0, x.abs()),
    "means and deviations": lambda x: torch.normal(x, x.abs()),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(x.view(2, 2)),
    "singular values": lambda x: torch.linalg.svdvals(x.view(2, 2)),
    "pseudo-inverse": lambda x: torch.linalg.pinv(x.view(2, 2)),
    "inverse with a check": lambda x: torch.linalg.inv(x.view(2, 2)),
    "grow": lambda x: torch.zeros(2).resize_(10),
    "grow an out=": lambda x: torch.add(x, x, out=torch.zeros(2)),
    "iteration to numbers": lambda x: [float(each) for each in x],
    "sum of a list": lambda x: sum(x) > 3 and x,
    "seed": lambda x: torch.manual_seed(torch.initial_seed() + 1),
    "seed of torch.random": lambda x: torch.random.manual_seed(torch.initial_seed() + 1),
    "a generator of its own": lambda x: torch.rand(3, generator=torch.Generator()),
    "sparse": lambda x: x.to_sparse() * 2,
    "sparse from outside": lambda x: SPARSE * 2,
    "higher-order operator": lambda x: torch.cond(
        x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)
    ),
}  # fmt: skip

ALLOWED: dict[str, Callable[[Any], Any]] = {
    "quantiles of the device": lambda x: torch.quantile(x, x[:2].sigmoid()),
    "quantiles by a method": lambda x: x.nanquantile(x[:2].sigmoid()),
    "max_norm": lambda x: torch.nn.functional.embedding(LONG, x.view(2, 2) * 9, max_norm=1.0),
    "data_ptr": lambda x: x.data_ptr(),
    "shape, strides, dtype": lambda x: (x.shape, x.stride(), x.dtype, len(x), x.numel()),
    "a number of the host": lambda x: x + torch.tensor(1.0),
    "its item": lambda x: x + torch.tensor(1.0).item(),
    "as_tensor of a tensor": lambda x: torch.as_tensor(x) + 1,
    "to a dtype": lambda x: x.to(torch.float64),
    "to the device of another": lambda x: x.to(x.device) + 1,
    "to a device in a variable": lambda x: x.to(CPU) + 1,
    "is_floating_point": lambda x: x + float(x.is_floating_point()),
    "same size": lambda x: x.is_same_size(x),
    "shrink": lambda x: torch.zeros(4).resize_(2),
    "a mask for one value": lambda x: x.clone().masked_fill_(x > 1, 0.0),
    "a number for a mask": lambda x: _assign(x, x > 1, 0.5),
    "an integer for a mask": lambda x: _assign(x, x > 1, 1),
    "a number of the host for a mask": lambda x: _assign(x, x > 1, torch.tensor(1.0)),
    "tensor_split by numbers": lambda x: (x.tensor_split(2), x.tensor_split([1, 3])),
    "linspace by numbers": lambda x: torch.linspace(0, 1, 3),
    "histc with a range": lambda x: torch.histc(x, 4, 0, 3),
    "repeat interleave to a known size": lambda x: x.repeat_interleave(
        LONG.repeat(2), output_size=4
    ),
    "a meta tensor": lambda x: torch.zeros(3, device="meta") + 1,
    "the default generator": lambda x: torch.rand(3, generator=torch.default_generator),
    "sizes that torch adds up": _sizes_that_torch_adds_up,
    "a copy of the object": lambda x: copy.copy(x) + 1,
    "a deep copy": lambda x: copy.deepcopy(x) + 1,
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_the_line(name: str) -> None:
    fn = REFUSED[name]
    threads = sys.modules["threading"]
    before = (torch.tensor, torch.Tensor.to, torch.Tensor.__repr__, threads.Thread._bootstrap_inner)
    with pytest.raises(CaptureFailedError) as failure:
        SoftwareBackend().capture(lambda: fn(X * 1))
    finding = failure.value.finding
    assert Path(__file__).name in finding.where, finding
    assert shown(finding.where) in finding.what
    assert finding.why
    assert finding.todo
    after = (torch.tensor, torch.Tensor.to, torch.Tensor.__repr__, threads.Thread._bootstrap_inner)
    assert before == after
    assert torch._C._len_torch_dispatch_stack() == 0
    assert (X + 1).tolist() == [1, 2, 3, 4]
    assert SoftwareBackend().capture(lambda: X + 1)


@pytest.mark.parametrize("name", ALLOWED)
def test_it_is_allowed(name: str) -> None:
    graph = SoftwareBackend().capture(lambda: ALLOWED[name](X))
    graph.replay()


@pytest.mark.parametrize("name", [*REFUSED, *ALLOWED])
def test_a_recorded_eager_run_allows_all_that_eager_code_may_do(name: str) -> None:
    fn = {**REFUSED, **ALLOWED}[name]
    if name in ("seed", "seed of torch.random", "grow an out="):
        return
    SoftwareBackend().record(lambda: fn(X * 1))


def test_a_refusal_that_is_swallowed_fails_the_capture_all_the_same() -> None:
    def fn() -> Any:
        try:
            return X.sum().item()
        except RuntimeError:
            return X + 1

    with pytest.raises(CaptureFailedError, match="reads a value on the host"):
        SoftwareBackend().capture(fn)


def test_a_refusal_that_becomes_another_error_is_told_as_a_refusal() -> None:
    def fn() -> None:
        try:
            X.sum().item()
        except RuntimeError:
            raise ValueError("mine") from None

    with pytest.raises(CaptureFailedError, match="reads a value") as failure:
        SoftwareBackend().capture(fn)
    assert isinstance(failure.value.__cause__, ValueError)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_passes_and_leaves_everything_usable(kind: type[BaseException]) -> None:
    x, before = torch.zeros(3), (torch.tensor, vars(torch.Tensor).get("cpu"))

    def fn() -> None:
        x.add_(1)
        raise kind("in the middle")

    with pytest.raises(kind, match="in the middle"):
        SoftwareBackend().capture(fn)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert before == (torch.tensor, vars(torch.Tensor).get("cpu"))
    assert x.tolist() == [0, 0, 0]
    graph = SoftwareBackend().capture(lambda: x.add_(1))
    graph.replay()
    assert x.tolist() == [1, 1, 1]


def test_a_capture_within_a_capture_is_refused() -> None:
    backend = SoftwareBackend()
    with pytest.raises(CaptureFailedError, match="within a capture"):
        backend.capture(lambda: backend.capture(lambda: X + 1))
    assert backend.capture(lambda: X + 1)


def test_the_line_is_that_of_the_caller_of_torch_modules() -> None:
    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is not followed
        def forward(self, x: Any) -> Any:
            return x.sum().item()

    with pytest.raises(CaptureFailedError) as failure:
        SoftwareBackend().capture(lambda: torch.nn.Sequential(Net())(X))
    line = Net.forward.__code__.co_firstlineno + 1
    assert failure.value.finding.where == place(__file__, line)


def test_a_reset_graph_says_so() -> None:
    from pytest_cudafork.errors import ReplayFailedError

    graph = SoftwareBackend().capture(lambda: X + 1)
    graph.reset()
    graph.reset()
    with pytest.raises(ReplayFailedError, match="was reset"):
        graph.replay()
