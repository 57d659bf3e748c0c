"""Numbers of the host that a graph took by value."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import functools  # noqa: E402

from pytest_cudafork.capture.stand_ins.tensors.cuda_tensors import CudaTensors  # noqa: E402
from tests.support.captures import Looking, looking  # noqa: E402


def suspicions(look: Looking) -> list[str]:
    found = look.watching.take()
    assert "errors" not in found
    return [each["what"] for each in found.get("suspicions", ())]


def test_a_number_that_was_read_from_a_tensor_and_would_be_another_one() -> None:
    with looking() as look:
        lengths = torch.tensor([3, 7])
        longest = lengths.max().item()
        captured = look.capture(lambda: torch.ones(9) * longest)
        captured.replay()
        assert suspicions(look) == []
        lengths.fill_(8)
        captured.replay()
        (told,) = look.watching.take()["suspicions"]
        assert "the host read 7 from int64[]" in told["what"]
        assert "it would read 8 now" in told["what"]
        first = test_a_number_that_was_read_from_a_tensor_and_would_be_another_one
        begin = first.__code__.co_firstlineno
        (read, (_, read_at)), (changed, (_, changed_at)) = (
            (words, place.rsplit(":", 1)) for words, place in told["lines"]
        )
        assert (read, changed) == ("read by the host at", "changed at")
        assert (int(read_at) - begin, int(changed_at) - begin) == (3, 7)


@pytest.mark.parametrize(
    "work", [lambda x, number: x * number, lambda x, number: torch.add(x, x, alpha=number)]
)
def test_a_number_that_the_host_has_read_within_the_capture(work: Any) -> None:
    with CudaTensors(), looking() as look:
        x, lengths = torch.ones(9, device="cuda"), torch.tensor([3, 7])
        captured = look.capture(lambda: work(x, lengths.max().item()))
        captured.replay()
        assert suspicions(look) == []
        lengths.fill_(8)
        captured.replay()
        (what,) = suspicions(look)
        assert "the host read 7 from int64[], a number that is in the graph" in what


def test_a_number_by_name_that_was_another_one_in_the_warm_up() -> None:
    with looking() as look:
        x = torch.ones(9)

        def work(step: int) -> Any:
            return torch.add(x, x, alpha=step)

        work(2)
        look.capture(lambda: work(2)).replay()
        assert suspicions(look) == []
        work(5)
        look.capture(lambda: work(6)).replay()
        (what,) = suspicions(look)
        assert what.startswith("add has the number 6 in the graph, and had 5 in the run before")


@pytest.mark.parametrize(
    "work",
    [
        lambda x, number: x * number,
        lambda x, number: torch.add(x, x, alpha=number),
        lambda x, number: torch.nn.functional.leaky_relu(x, number),
        lambda x, number: x.clamp(max=number),
    ],
)
def test_a_floating_point_number_that_is_another_one_in_eager_runs_since(work: Any) -> None:
    with looking() as look:
        x = torch.ones(9)

        def run(number: float) -> Any:
            return work(x, number)

        run(0.5)
        captured = look.capture(lambda: run(0.5))
        run(0.5)
        captured.replay()
        assert suspicions(look) == []
        run(0.25)
        captured.replay()
        (what,) = suspicions(look)
        assert "has the number 0.5 in the graph, and had 0.25 outside the graph since" in what


def test_floating_point_numbers_of_several_graphs_and_bounds_of_eager_runs_are_no_suspicion() -> (
    None
):
    with looking() as look:
        x = torch.ones(9)

        def run(number: float, most: int) -> Any:
            return (x * number).clamp(max=most)

        graphs = []
        for number in (0.5, 0.25):
            run(number, 3)
            graphs.append(look.capture(functools.partial(run, number, 3)))
        run(0.25, 4)
        run(0.5, 5)
        for one in graphs:
            one.replay()
        assert suspicions(look) == []


@pytest.mark.parametrize(
    "work",
    [
        lambda x, step: x.roll(step),
        lambda x, step: torch.nn.functional.pad(x, (step, 8 - step)),
        lambda x, step: torch._foreach_mul([x, x], [float(step), 2.0]),
        lambda x, step: x * complex(0, step),
    ],
)
def test_a_number_that_is_given_in_a_list_or_is_complex(work: Any) -> None:
    with looking() as look:
        x = torch.rand(8)

        def run(step: int) -> Any:
            return work(x, step)

        run(2)
        look.capture(lambda: run(2)).replay()
        assert suspicions(look) == []
        run(5)
        look.capture(lambda: run(6)).replay()
        (what,) = suspicions(look)
        assert "has the number 6" in what
        assert "in the run before the capture" in what


def test_a_size_in_a_list_is_no_number_that_was_frozen() -> None:
    with looking() as look:
        x = torch.rand(3)

        def run(count: int) -> Any:
            return torch.zeros(count, 3) + torch.nn.functional.pad(x, (0, count))[:3]

        run(5)
        look.capture(lambda: run(6)).replay()
        assert suspicions(look) == []


def test_the_size_of_a_tensor_is_no_number_that_was_read() -> None:
    with looking() as look:
        lengths, x = torch.tensor([3, 7]), torch.ones(7, 1)
        lengths.max().item()
        captured = look.capture(lambda: x.expand(7, 2).reshape(2, 7).contiguous() * 2)
        lengths.fill_(8)
        captured.replay()
        assert suspicions(look) == []


def test_a_number_that_its_line_has_read_again() -> None:
    def longest(lengths: Any) -> Any:
        return lengths.max().item()

    with looking() as look:
        number = longest(torch.tensor([3, 7]))
        captured = look.capture(lambda: torch.ones(9) * number)
        longest(torch.tensor([3, 9]))
        captured.replay()
        (told,) = look.watching.take()["suspicions"]
        assert "it would read 9 now" in told["what"]
        assert [words for words, _ in told["lines"]] == ["read by the host at"]


class Counting(torch.optim.Optimizer):  # type: ignore[misc]
    """Counts its steps in a tensor, as a library of optimizers may."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})
        self.count = torch.tensor(1)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        if closure is not None:
            closure()
        self.count += 1
        if self.count.item() > 9:
            raise RuntimeError("too many")


@pytest.mark.parametrize("kind", [torch.optim.Adam, Counting])
def test_a_number_that_an_optimizer_reads_for_its_step_is_none_of_the_graph(kind: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    with looking() as look:
        optimizer = kind([weight])
        for _ in range(3):
            optimizer.step()
        captured = look.capture(lambda: weight.detach() ** 3 * 4)
        optimizer.step()
        captured.replay()
        assert suspicions(look) == []


def test_a_number_that_a_closure_reads_within_a_step_may_be_in_the_graph() -> None:
    with looking() as look:
        lengths, numbers = torch.tensor([3, 7]), list[Any]()
        optimizer = Counting([torch.nn.Parameter(torch.ones(2))])
        optimizer.step(lambda: numbers.append(lengths.max().item()))
        captured = look.capture(lambda: torch.ones(9) * numbers[0])
        lengths.fill_(8)
        captured.replay()
        (what,) = suspicions(look)
        assert "the host read 7 from int64[]" in what


def test_a_number_that_was_another_one_in_the_warm_up() -> None:
    class Seeded:
        seed = 5

        def __call__(self) -> Any:
            self.seed += 1
            return torch.ones(3) * self.seed

    with looking() as look:
        work = Seeded()
        work()
        captured = look.capture(work)
        captured.replay()
        (what,) = suspicions(look)
        assert what == "mul has the number 7 in the graph, and had 6 in the run before the capture"


def test_a_position_that_is_another_one_in_eager_runs_since() -> None:
    with looking() as look:
        cache = torch.zeros(8, 2)

        def work(position: int) -> Any:
            return cache[position] + 1

        work(3)
        captured = look.capture(lambda: work(3))
        captured.replay()
        assert suspicions(look) == []
        work(5)
        captured.replay()
        (what,) = suspicions(look)
        assert what.startswith("select has the number 3 in the graph, and had 5 outside")


def test_numbers_of_other_graphs_and_of_other_sizes_are_right() -> None:
    with looking() as look:
        cache = torch.zeros(8, 2)

        def work(first: int, size: int) -> Any:
            return cache[first : first + size] + 1

        graphs = []
        for first, size in ((0, 2), (2, 2), (0, 4)):
            work(first, size)
            graphs.append(look.capture(functools.partial(work, first, size)))
        for captured in graphs:
            captured.replay()
        assert suspicions(look) == []


def test_numbers_of_an_optimizer_that_a_schedule_has_changed_are_suspicious() -> None:
    with looking() as look:
        weight = torch.nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.9, foreach=False)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

        def step() -> None:
            optimizer.step()

        step()
        captured = look.capture(step)
        captured.replay()
        assert look.kinds("suspicions") == []
        schedule.step()
        captured.replay()
        (found,) = look.watching.take()["suspicions"]
    assert found["kind"] == "frozen-host-number"
    assert "SGD has lr = 0.25 now, and the graph has its step with lr = 0.5" in found["what"]
    assert found["lines"][0][1].startswith(__file__)
