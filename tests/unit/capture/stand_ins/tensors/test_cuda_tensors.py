"""Tensors on "cuda" without a GPU: what lies there, what is copied, and what is told of it."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from pytest_cudafork import ReplayDiffersError, assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.capture.pair.capture_pair import capture_pair  # noqa: E402
from pytest_cudafork.capture.stand_ins.capturing.graphs import CUDAGraph, graph  # noqa: E402
from pytest_cudafork.capture.stand_ins.tensors.cuda_tensors import CudaTensors  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError, GraphNotJudgedError  # noqa: E402
from pytest_cudafork.observe.torch.rows import PLACE  # noqa: E402
from tests.support.captures import looking  # noqa: E402

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.usefixtures("mode")
def test_what_is_made_there_and_from_it_lies_there() -> None:
    x = torch.zeros(2, 3, device="cuda")
    assert x.device == GPU
    assert (x.is_cuda, x.is_cpu, x.get_device()) == (True, False, 0)
    for made in (x + 1, x[:1], torch.empty_like(x), x.T, torch.cat([x, x]), x.new_zeros(2)):
        assert made.device == GPU
    assert all(part.is_cuda for part in x.unbind())
    assert torch.ones(1, device="cuda:3").get_device() == 3
    assert torch.ones(1, device=torch.device("cuda", 1)).device.index == 1
    assert torch.ones(2, pin_memory=True).device == CPU
    assert torch.ones(2).pin_memory().device == CPU
    assert torch.ones(2).is_cpu
    assert torch.ones(2).get_device() == -1


@pytest.mark.usefixtures("mode")
def test_fakes_of_such_tensors_are_fakes_of_cpu_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    layer, there = torch.nn.Linear(3, 3).to("cuda"), torch.ones(2, 3, device="cuda")
    with FakeTensorMode() as fakes:
        weight, x = fakes.from_tensor(layer.weight), fakes.from_tensor(there)
        found = (x @ weight).to("cuda") + torch.ones(3, device=x.device) + x.cuda()
        found = found + torch.arange(3, device="cuda") + torch.zeros_like(x)
        assert (found.shape, found.device) == ((2, 3), CPU)
        made = torch.nn.Linear(3, 1, device="cuda")
        made(torch.ones(2, 3, device="cuda")).sum().backward()
        assert made.weight.grad.shape == (1, 3)
    assert there.device == layer.weight.device == GPU


@pytest.mark.usefixtures("mode")
def test_modules_and_devices_of_a_with() -> None:
    module = torch.nn.Linear(2, 2).to("cuda")
    assert module.weight.is_cuda
    assert module(torch.ones(1, 2, device=module.weight.device)).is_cuda
    assert torch.nn.Linear(2, 2, device="cuda").bias.is_cuda
    with torch.device("cuda"):
        assert torch.ones(3).is_cuda
        assert not torch.ones(3, device="cpu").is_cuda
    assert not torch.ones(3).is_cuda


@pytest.mark.usefixtures("everywhere")
def test_the_host_works_once_and_knows_its_numbers_within_a_capture() -> None:
    lengths, there, made = torch.tensor([3, 1]), torch.zeros(4, device="cuda"), CUDAGraph()
    array = numpy.ones(3)
    with graph(made):
        lengths.add_(1)
        longest = lengths.max().item()
        there[:longest].add_(1)
        told = f"{lengths}", lengths.tolist(), lengths.numpy().sum(), torch.from_numpy(array).sum()
        again = torch.tensor([1, 2]).cpu().to(torch.float64) + torch.as_tensor([1, 2])
    made.replay()
    made.replay()
    assert (longest, there.tolist(), lengths.tolist()) == (4, [2.0] * 4, [4, 2])
    assert told == ("tensor([4, 2])", [4, 2], 6, 3)
    assert again.tolist() == [2, 4]


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("looked_at", [False, True])
def test_a_capture_knows_what_lies_on_the_host(looked_at: bool) -> None:
    lengths, there, made = torch.tensor([3, 1]), torch.zeros(4, device="cuda"), CUDAGraph()
    number, pinned = torch.tensor(2.0), torch.ones(4, pin_memory=True)
    with looking() if looked_at else contextlib.nullcontext(), graph(made):
        results = [
            there[: lengths.max()] + 3,  # bounds that are single numbers
            there[lengths.min() :] + torch.arange(lengths.max(), device="cuda"),
            torch.full((2,), number, device="cuda") + torch.full_like(there[:2], number),
            there + torch.LongTensor([1, 2]).sum().item(),
            there[:2] + torch.LongTensor([1, 2]).pin_memory().to("cuda", non_blocking=True),
            there + int(torch.from_dlpack(numpy.ones(3)).sum()),
            there + torch.zeros_like(there, device="cpu").add_(1).sum().item(),
            there + there.new_ones(3, device="cpu").sum().item(),
            pinned.to("cuda", torch.float64, True, True) + 0,
        ]
        there[there == 0] = number
    made.replay()
    assert [each.tolist() for each in results] == [
        [3] * 3, [0, 1, 2], [4] * 2, [3] * 4, [1, 2], [3] * 4, [4] * 4, [3] * 4, [1] * 4,
    ]  # fmt: skip
    assert there.tolist() == [2] * 4


@pytest.mark.usefixtures("mode")
def test_what_is_written_by_numbers_of_a_gpu_stays_on_the_host() -> None:
    host, there = torch.ones(2), torch.ones(2, device="cuda")
    host.fill_(there[0] + 1)
    host[0] = there[0]
    torch.broadcast_tensors(there, host)
    assert (host.device, host.tolist()) == (CPU, [1, 2])


@pytest.mark.usefixtures("mode")
def test_who_looks_hears_of_numbers_that_the_host_takes_by_tolist() -> None:
    with looking() as look:
        x = torch.ones(3, device="cuda")
        captured = look.capture(lambda: x * 2)
        torch.ones(3).tolist()
        assert look.kinds() == []
        captured.result.tolist()
        assert look.kinds() == ["unfilled-read"]
        assert captured.replay().tolist() == [2, 2, 2]
        assert look.kinds() == []


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("cudnn", [False, True])  # a build of torch with CUDA has it
def test_sequences_that_are_packed_have_their_lengths_on_the_host(
    cudnn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._C, "_has_cudnn", cudnn)
    x, gru = torch.ones(2, 3, 4, device="cuda"), torch.nn.GRU(4, 4, batch_first=True).to("cuda")
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
    assert (packed.data.device, packed.batch_sizes.device) == (GPU, CPU)
    padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(gru(packed)[0], batch_first=True)
    assert (padded.is_cuda, lengths.tolist()) == (True, [3, 2])


def test_what_lay_there_in_one_test_lies_there_in_the_next() -> None:
    with CudaTensors():
        there, pinned = torch.ones(2, device="cuda"), torch.ones(2, pin_memory=True)
    with CudaTensors():
        assert (there.device, pinned.is_pinned()) == (GPU, True)
        assert torch.zeros(2, device=there.device).is_cuda


@pytest.mark.usefixtures("everywhere")
def test_threads_of_the_host_may_work_while_another_one_captures() -> None:
    host, there, made, found = torch.ones(2), torch.ones(2, device="cuda"), CUDAGraph(), []

    def begin(work: Any) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def adds() -> None:
        with contextlib.suppress(CaptureFailedError):
            there.add_(1)

    with graph(made):
        begin(lambda: found.append((host + torch.tensor([1, 2])).sum().item()))
        there.add_(1)
    assert found == [5]
    with pytest.raises(CaptureFailedError, match="while another"), graph(CUDAGraph()):
        begin(adds)


def planning(lengths: Any, x: Any) -> Any:
    """Return a forward that plans on the host, as builders of metadata do."""
    staging, there = torch.zeros(8).pin_memory(), torch.zeros(8, device="cuda")

    def forward(*_: Any) -> Any:
        longest = int((lengths + 1).max().item())
        staging.copy_(torch.arange(8) * lengths[0])
        there.copy_(staging, non_blocking=True)
        return x[:longest] * there[:longest]

    return forward


@pytest.mark.usefixtures("everywhere")
def test_the_checks_of_graphs_leave_out_the_work_of_the_host() -> None:
    lengths, x = torch.tensor([3, 2]), torch.ones(8, device="cuda")
    assert_replay_equals_eager(planning(lengths, x), [x], backend="software")
    with pytest.raises(ReplayDiffersError, match="it looks frozen"):
        assert_replay_equals_eager(
            planning(lengths, x), [x], vary=[lambda: lengths[:1].fill_(1)], backend="software"
        )
    pair = capture_pair(lambda desc: (planning(lengths, x), {}), 4, backend="software")
    assert pair.report.notes == ()


@pytest.mark.usefixtures("mode")
def test_numbers_that_the_host_draws_within_a_capture_are_not_judged() -> None:
    with (
        pytest.raises(GraphNotJudgedError, match=r"draws\s+numbers\s+on the host"),
        graph(CUDAGraph()),
    ):
        torch.rand(2)


@pytest.mark.usefixtures("mode")
def test_a_tensor_whose_place_is_not_known_is_refused_as_one_of_the_device() -> None:
    unknown = torch.Tensor([1.0, 1.0])
    reading: list[Any] = [
        lambda: unknown.tolist(),  # looked up within the capture
        lambda: unknown.cpu(),
        lambda: unknown.to("cpu"),
    ]
    for reads in reading:
        with pytest.raises(CaptureFailedError, match=r"reads\s+a\s+value"), graph(CUDAGraph()):
            reads()


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.usefixtures("mode")
def test_functional_transforms_leave_tensors_where_they_lie() -> None:
    w, places = torch.ones(2, 2, device="cuda"), []

    def loss(row: Any) -> Any:
        places.append(row.device)
        return (row * torch.ones(2, device=row.device)).sum()

    gradients = torch.func.vmap(torch.func.grad(loss))(w)
    assert places == [GPU]
    assert gradients.is_cuda
    assert all(each.is_cuda for each in torch.func.jvp(torch.sin, (w,), (w,)))


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(
    ("number", "later"),
    [
        (lambda: torch.tensor(2.0), 2),
        (lambda: torch.full((), 2.0), 2),
        (lambda: torch.tensor(2.0, device="cuda").cpu(), 2),
        (lambda: torch.tensor(2.0, device="cuda"), 3),
        (lambda: torch.tensor([2.0], device="cuda")[0], 3),
    ],
)
def test_a_capture_takes_a_number_of_the_host_by_value_and_one_on_a_gpu_as_memory(
    number: Any, later: int
) -> None:
    there, made, value = torch.ones(2, device="cuda"), CUDAGraph(), number()
    with graph(made):
        product = there * value
    made.replay()
    assert product.tolist() == [2, 2]
    value.fill_(3)
    made.replay()
    assert product.tolist() == [later, later]


@pytest.mark.usefixtures("mode")
def test_a_number_beside_tensors_of_which_the_place_is_not_known_is_read_at_each_replay() -> None:
    made, value, unknown = CUDAGraph(), torch.tensor(2.0), torch.Tensor([1.0, 1.0])
    with graph(made):
        product = unknown * value
    value.fill_(3)
    made.replay()
    assert product.tolist() == [3, 3]


@pytest.mark.usefixtures("mode")
def test_gradients_of_single_numbers_are_no_numbers_of_the_host() -> None:
    scale, made = torch.ones((), device="cuda", requires_grad=True), CUDAGraph()
    (gradient,) = torch.autograd.grad(scale * 3, scale)
    with torch.no_grad(), graph(made):
        result = torch.ones(2, device="cuda") * gradient
    gradient.fill_(5)
    made.replay()
    assert result.tolist() == [5, 5]


def test_threads_that_are_started_meanwhile_make_them_too() -> None:
    found: list[bool] = []
    with CudaTensors().in_this_thread_and_new_ones():
        thread = threading.Thread(
            target=lambda: found.append(torch.ones(1, device="cuda").is_cuda), daemon=True
        )
        thread.start()
        thread.join()
        assert torch.ones(1, device="cuda").is_cuda
    assert found == [True]


def test_nothing_is_told_otherwise_afterwards() -> None:
    with CudaTensors():
        x = torch.ones(2, device="cuda")
    assert x.device == CPU
    with pytest.raises((RuntimeError, AssertionError)):
        torch.ones(2, device="cuda")


def test_gradients_lie_where_their_parameters_do_for_who_clips_them() -> None:
    made = CudaTensors()
    with made.in_this_thread_and_new_ones():
        there = torch.nn.Parameter(torch.ones(3, device="cuda"))
        here = torch.nn.Parameter(torch.ones(2))
        for each in (there, here):
            (each * 2).sum().backward()
        gradients = [there.grad, here.grad]
        group = torch.utils._foreach_utils._group_tensors_by_device_and_dtype
        found = group([gradients, []], with_indices=True)
        assert {key[0].type: (len(lists[0]), at) for key, (lists, at) in found.items()} == {
            "cuda": (1, [0]),
            "cpu": (1, [1]),
        }
        captured = CUDAGraph()
        with graph(captured):
            norm = torch.nn.utils.clip_grad_norm_([there], 1.0)
        captured.replay()
        assert norm.item() == pytest.approx(12**0.5)
        assert there.grad.norm().item() == pytest.approx(1.0, abs=1e-5)
    assert group([[there.grad], []])


def test_torch_can_be_asked_where_a_tensor_lies_while_they_are_there() -> None:
    made = CudaTensors()
    with made.in_this_thread_and_new_ones():
        place = getattr(torch.cuda, PLACE)
        assert (place(torch.ones(1, device="cuda:1")), place(torch.ones(1))) == (1, None)
    assert not hasattr(torch.cuda, PLACE)


@pytest.mark.usefixtures("everywhere")
def test_an_optimizer_of_such_tensors_asks_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []
    # The first is asked since torch 2.13, the second before.
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **how: asked.append(None))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: asked.append(None))
    for device in ("cuda", "cpu"):
        weight = torch.nn.Parameter(torch.ones(2, device=device))
        weight.grad = torch.ones_like(weight)
        torch.optim.Adam([weight], lr=0.5).step()
        assert weight.detach().cpu().tolist() == pytest.approx([0.5, 0.5])
        assert len(asked) == (device == "cpu")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler, at its import
@pytest.mark.usefixtures("everywhere")
def test_compiled_functions_run_as_they_are_written() -> None:
    def work(x: Any) -> Any:
        return torch.relu(x) + 1

    compiled = torch.compile(work, mode="reduce-overhead")
    x, made = torch.ones(2, device="cuda"), CUDAGraph()
    assert compiled(x).is_cuda
    with graph(made):
        result = compiled(x)
    x.fill_(2)
    made.replay()
    assert result.tolist() == [3, 3]


@pytest.mark.usefixtures("everywhere")
def test_a_mask_of_the_host_names_places_that_the_graph_keeps() -> None:
    there, host = torch.arange(4.0, device="cuda").view(2, 2), torch.tensor([True, False])
    made = CUDAGraph()
    with graph(made):
        rows, columns, whole = there[host] * 2, there[:, host] + 1, there[None, host]
        some = there[torch.tensor([[True, False], [True, True]])]
    host.logical_not_()
    there.mul_(10)
    made.replay()
    assert (rows.tolist(), columns.tolist()) == ([[0, 20]], [[1], [21]])
    assert (whole.tolist(), some.tolist()) == ([[[0, 10]]], [0, 20, 30])
