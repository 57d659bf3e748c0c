"""``assert_replay_equals_eager``: every stimulus brings out its bug, right programs pass."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import (  # noqa: E402
    CudaForkWarning,
    GraphNotJudgedError,
    GraphUsageError,
    ReplayDiffersError,
    assert_replay_equals_eager,
)
from pytest_cudafork.capture.interface.lines import shown  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402


def check(fn: Any, inputs: Any = (), **options: Any) -> Any:
    return assert_replay_equals_eager(fn, inputs, backend="software", **options)


def findings(run: Callable[[], Any]) -> dict[str, str]:
    """Return what was said, by check and path."""
    with pytest.raises(ReplayDiffersError) as caught:
        run()
    assert caught.value.findings
    return {f"{one.check} {one.path}".strip(): one.what for one in caught.value.findings}


def told(run: Callable[[], Any]) -> str:
    with pytest.raises(ReplayDiffersError) as caught:
        run()
    return " ".join(str(caught.value).split())


def test_a_replay_that_computes_nan_is_not_called_one_that_does_nothing() -> None:
    divisor = [0.0]
    x = torch.ones(4)
    found = findings(
        lambda: check(
            lambda x: (x - x) / divisor[0],
            [x],
            vary=[lambda: divisor.append(divisor.pop() + 1)],
        )
    )
    assert list(found) == ["replay-differs output"]
    assert "eager 0, replay nan" in found["replay-differs output"]


def test_random_numbers_that_are_asked_for_and_not_drawn_are_found() -> None:
    dropout = torch.nn.Dropout(0.5).eval()
    assert list(findings(lambda: check(dropout, [torch.ones(8)], rng=True))) == [
        "rng-frozen output"
    ]
    check(torch.nn.Dropout(0.5).train(), [torch.ones(64)], rng=True)


def own_graph(fn: Any) -> Any:
    """A graph that the program captures itself."""
    graph = SoftwareBackend().capture(fn)

    def replay() -> Any:
        graph.replay()
        return graph.recording.result

    return replay


def test_weights_that_a_graph_of_its_own_returns_are_not_poisoned() -> None:
    model, x = torch.nn.Linear(4, 4).requires_grad_(False), torch.randn(2, 4)
    eager = copy.deepcopy(model)
    graph = own_graph(lambda: (model(x), model.weight))
    check(
        lambda x: (eager(x), eager.weight),
        [x],
        replay=lambda: (graph()[0], model.weight),
        vary=[lambda: x.normal_()],
    )


def test_a_graph_of_its_own_that_does_nothing_is_found_though_eager_code_left_the_answer() -> None:
    ids, out = torch.tensor([1, 2, 3]), torch.zeros(3, dtype=torch.int64)

    def fn(ids: Any) -> Any:
        return out.copy_(ids * 2)

    fn(ids)
    found = findings(lambda: check(fn, [ids], replay=lambda: out))
    assert any("output" in name for name in found)
    check(fn, [ids], replay=own_graph(lambda: fn(ids)))


def test_a_graph_of_its_own_that_leaves_out_a_buffer_is_found() -> None:
    ids, counts = torch.tensor([1, 2, 3]), torch.zeros(3, dtype=torch.int64)

    def fn(ids: Any) -> Any:
        counts.copy_(ids)
        return ids * 2

    fn(ids)
    found = findings(lambda: check(fn, [ids], replay=own_graph(lambda: ids * 2)))
    assert list(found) == ["no-op-replay output['counts']"]


def test_a_replay_of_which_nothing_could_be_told_is_no_success() -> None:
    ids = torch.tensor([1, 2, 3])
    old = ids * 2
    with pytest.raises(GraphUsageError, match=r"nothing was compared.*new memory"):
        check(lambda ids: ids * 2, [ids], replay=lambda: old.clone())
    graph = own_graph(lambda: ids * 2)
    check(lambda i: i * 2, [ids], replay=lambda: graph().clone(), vary=[lambda: ids.add_(1)])


def test_an_input_that_the_replay_alone_changes_is_found() -> None:
    x = torch.ones(4)

    def replay() -> Any:
        result = x * 2
        x.zero_()
        return result

    assert list(findings(lambda: check(lambda x: x * 2, [x], replay=replay))) == [
        "replay-differs inputs[0]"
    ]


def test_an_input_that_both_change_is_noted() -> None:
    (note,) = check(lambda x: x.mul_(2) + 1, [torch.ones(4)]).notes
    assert "changes inputs[0] in place" in note


@pytest.mark.parametrize("fixed", [False, True])
def test_what_grows_from_replay_to_replay_is_found_by_other_eager_code(fixed: bool) -> None:
    x, lens = torch.ones(4, 2), torch.tensor([1, 2, 3, 4])
    kept = lens.clone()

    def fn(x: Any) -> Any:
        if fixed:
            kept.copy_(lens)
        kept.add_(1)
        return x * kept[:, None]

    def eager(x: Any) -> Any:
        return x * (lens + 1)[:, None]

    if fixed:
        check(fn, [x], eager=eager)
    else:
        text = told(lambda: check(fn, [x], eager=eager))
        assert "in the second replay" in text
        assert "carries something from one replay to the next" in text


def test_eager_code_of_its_own_may_go_on_as_the_graph_does() -> None:
    x, cache, position = torch.ones(2), torch.zeros(8, 2), torch.zeros(1, dtype=torch.int64)

    def fn(x: Any) -> Any:
        cache.index_copy_(0, position, x[None])
        position.add_(1)
        return cache.sum(0)

    check(fn, [x], eager=lambda x: cache.sum(0) + x)


def test_what_the_backend_cannot_run_is_no_verdict() -> None:
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(GraphNotJudgedError, match="no verdict") as caught:
        check(lambda x: torch.sparse.mm(sparse, x), [torch.ones(3, 3)])
    assert [one.check for one in caught.value.findings] == ["not-judged"]
    assert "test_assert_replay.py" in str(caught.value)


def test_a_right_function_passes_and_tells_what_was_checked() -> None:
    x, n = torch.randn(4, 3), torch.tensor([1, 2, 3, 4])
    report = check(
        lambda x, n: {"y": (x * n[:, None]).relu(), "n": n + 1},
        {"x": x, "n": n},
        vary=[lambda: n.fill_(7), lambda: x.mul_(2)],
        interleave=[lambda: torch.ones(9) * 2],
    )
    assert report.backend == "software"
    assert report.replays >= 8
    assert {"replay-differs", "no-op-replay", "moved-input"} <= set(report.checks)
    assert [node.name for node in report.nodes] == ["aten::mul", "aten::relu", "aten::add"]
    assert report.graph is not None
    assert n.tolist() == [1, 2, 3, 4] or n.tolist() == [7] * 4


def test_nested_outputs_are_compared_by_path() -> None:
    @dataclass
    class Out:
        logits: Any
        extra: Any

    k = [1.0]
    x = torch.randn(3)

    def fn(x: Any) -> Any:
        return Out(x * 2, {"a": (x, x * k[0])})

    found = findings(lambda: check(fn, [x], vary=[lambda: k.__setitem__(0, 5.0)]))
    assert list(found) == ["replay-differs output.extra['a'][1]"]
    assert "3 of 3 elements differ (float32[3]" in found["replay-differs output.extra['a'][1]"]


def test_a_frozen_host_value_is_called_frozen_and_named_by_its_stimulus() -> None:
    lens = [3]
    x = torch.randn(4)

    def grow() -> None:
        lens[0] = 9

    text = told(lambda: check(lambda x: x / max(lens), [x], vary=[grow]))
    assert "after vary[0] (grow)" in text
    assert "it looks frozen" in text
    assert "eager" in text and "replay" in text  # noqa: PT018


def test_a_number_of_python_is_frozen_too() -> None:
    lens = [3]
    text = told(
        lambda: check(lambda x: (x * 2, len(lens)), [torch.ones(2)], vary=[lambda: lens.append(1)])
    )
    assert "output[1] is a value of Python: eager gives 2, the graph 1" in text


def test_no_vary_is_needed_where_float_inputs_tell() -> None:
    x = torch.randn(4)
    kept = x.clone()
    found = findings(
        lambda: check(lambda x: kept * 2 + 0 * x.new_zeros(4), [x], eager=lambda x: x * 2)
    )
    assert "replay-differs output" in found


def test_a_replay_that_does_nothing_is_found() -> None:
    x = torch.ones(3)
    out = x * 2
    assert "no-op-replay output" in findings(
        lambda: check(lambda x: x * 2, [x], replay=lambda: out)
    )
    memo: list[Any] = []

    def memoised(x: Any) -> Any:
        if not memo:
            memo.append(x * 2)
        return memo[0]

    assert "not-captured" in findings(lambda: check(memoised, [x]))


def test_an_input_that_moves_is_found() -> None:
    inputs = {"x": torch.ones(3)}

    def rebind() -> None:
        inputs["x"] = torch.full((3,), 5.0)

    found = findings(lambda: check(lambda x: x * 2, inputs, vary=[rebind]))
    assert "moved-input inputs['x']" in found
    assert any(name.startswith(("replay-differs", "freed-memory")) for name in found)


def test_an_attribute_that_is_rebound_is_found() -> None:
    class Model:
        def __init__(self) -> None:
            self.bias = torch.ones(3)

        def __call__(self, x: Any) -> Any:
            return x + self.bias

    model = Model()

    def rebind() -> None:
        model.bias = torch.full((3,), 9.0)

    found = findings(lambda: check(model, [torch.ones(3)], vary=[rebind]))
    assert any(
        name in found for name in ("moved-input self.bias", "freed-memory self.bias")
    ) or any(name.startswith("freed-memory") for name in found)


def test_a_name_of_an_input_that_is_rebound_is_found() -> None:
    class Runner:
        def __init__(self) -> None:
            self.tokens = torch.ones(3)

        def eager(self, *_: Any) -> Any:
            return self.tokens * 2

    runner = Runner()
    static = runner.tokens
    out = torch.zeros(3)

    def replay() -> Any:
        return torch.mul(static, 2, out=out)

    def rebind() -> None:
        runner.tokens = runner.tokens + 1

    found = findings(lambda: check(runner.eager, [static], replay=replay, vary=[rebind]))
    assert "moved-input self.tokens" in found


def test_what_eager_code_changes_in_place_is_compared() -> None:
    cache, at = torch.zeros(8), [0]

    def write(x: Any) -> Any:
        cache[at[0] : at[0] + 2] = x
        return x * 2

    def move() -> None:
        at[0] = 4

    found = findings(lambda: check(write, [torch.ones(2)], vary=[move]))
    assert "replay-differs cache" in found
    at[0] = 0
    check(write, [torch.ones(2)])


def test_a_training_step_is_replayed() -> None:
    layer = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)

    def step(x: Any) -> Any:
        optimizer.zero_grad(set_to_none=False)
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = torch.randn(4, 3)
    step(x)
    check(step, [x])


def test_other_work_that_overwrites_shared_memory_is_found() -> None:
    scratch = torch.zeros(8)

    def step(x: Any) -> Any:
        return x + scratch[: x.numel()]

    found = findings(
        lambda: check(
            step, [torch.ones(4)], interleave=[lambda: scratch.add_(1)], eager=lambda x: x
        )
    )
    assert "replay-differs output" in found
    check(lambda x: x + 1, [torch.ones(4)], interleave=[lambda: scratch.add_(1)])


def test_memory_that_other_work_frees_is_found() -> None:
    class Workspace:
        def __init__(self) -> None:
            self.buffer = torch.zeros(4)

        def run(self, x: Any) -> Any:
            if self.buffer.numel() < x.numel():
                self.buffer = torch.zeros(x.numel())
            return x + self.buffer[: x.numel()]

    space = Workspace()
    big = torch.ones(64)
    found = findings(lambda: check(space.run, [torch.ones(4)], interleave=[lambda: space.run(big)]))
    assert any(name.startswith(("freed-memory", "moved-input")) for name in found)


def test_only_live_rows_are_compared() -> None:
    x, live = torch.ones(4, 2), [4]

    def eager(x: Any) -> Any:
        out = torch.zeros_like(x)
        out[: live[0]] = x[: live[0]] * 2
        return out

    def shrink() -> int:
        live[0] = 2
        return 2

    check(lambda x: x * 2, [x], eager=eager, vary=[shrink])
    live[0] = 4
    found = findings(
        lambda: check(lambda x: x * 2, [x], eager=eager, vary=[lambda: shrink() and None])
    )
    assert "replay-differs output" in found


def test_a_refill_must_not_leave_what_matters() -> None:
    static = {"x": torch.ones(4, 2), "bias": torch.ones(2)}
    batch = torch.randn(2, 2)

    def fill_some() -> int:
        static["x"][:2] = batch
        return 2

    def fill_all() -> int:
        static["bias"].zero_()
        return fill_some()

    def fn(x: Any, bias: Any) -> Any:
        return x + bias

    text = told(lambda: check(fn, static, vary=[fill_some], refills=True))
    assert "stale padding" in text
    check(fn, static, vary=[fill_all], refills=True)


def test_random_numbers_must_advance() -> None:
    x = torch.ones(64)
    report = check(lambda x: torch.nn.functional.dropout(x), [x], rng=True)
    assert "rng-frozen" in report.checks
    assert "rng-frozen" in check(lambda x: torch.rand(4), [x]).checks
    seed = [0]

    def frozen(x: Any) -> Any:
        seed[0] += 1
        return x * seed[0]

    assert "rng-frozen output" in findings(lambda: check(frozen, [x], rng=True))


def test_a_generator_of_ones_own_is_not_captured() -> None:
    own = torch.Generator().manual_seed(1)
    text = told(lambda: check(lambda x: x + torch.rand(8, generator=own), [torch.ones(8)]))
    assert "generator of its own" in text


def test_memory_that_nobody_fills_is_found() -> None:
    def partly(x: Any) -> Any:
        out = torch.empty(4)
        out[:2] = x
        return out.sum()

    with pytest.raises(ReplayDiffersError) as caught:
        check(partly, [torch.ones(2)])
    found = [one for one in caught.value.findings if one.check == "uninitialized-read"]
    assert found
    assert Path(__file__).name in found[0].where


def test_eager_code_that_python_varies_is_frozen_in_the_graph() -> None:
    source = random.Random(1)
    text = told(lambda: check(lambda x: x * source.random(), [torch.ones(3)]))
    assert "Eager code gives something else each time, and the replay always the same" in text


def test_a_reference_that_is_not_reproducible_is_noted_not_blamed() -> None:
    source = random.Random(1)
    with pytest.warns(CudaForkWarning, match="not reproducible"):
        report = check(lambda x: x * 2, [torch.ones(3)], eager=lambda x: x * source.random())
    (why_not,) = report.not_checked.values()
    assert f"first at {shown(str(Path(__file__)))}".rpartition(":")[0] in why_not


@pytest.mark.parametrize("place", [0, 7])
def test_padding_that_is_written_over_live_rows_is_found_whichever_remains(place: int) -> None:
    """Eager code on the padded batch does the same, and the live row is written last here."""
    x, slots, cache = torch.randn(4, 2), torch.tensor([1, 2, 3, 4]), torch.zeros(8, 2)

    def fn(x: Any, slots: Any) -> Any:
        cache[slots.flip(0)] = x.flip(0)
        return cache[slots] * 2

    def shrink() -> int:
        slots.copy_(torch.tensor([0, 5, place, place]))
        return 2

    if place == 7:
        check(fn, [x, slots], vary=[shrink])
        return
    (found,) = findings(lambda: check(fn, [x, slots], vary=[shrink])).items()
    assert found[0] == "replay-differs"
    assert "writes padded rows into float32[8, 2] at 0, where it writes live rows, too" in found[1]
    assert "2 of 4 rows are live" in found[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"inputs": torch.ones(1)}, "give a list"),
        ({"inputs": 3}, "give a list"),
        ({"inputs": {3: torch.ones(1)}}, "inputs has the key 3"),
        ({"vary": lambda: 1}, "list of callables"),
        ({"interleave": [None]}, r"interleave\[0\]"),
        ({"eager": 3}, "eager is 3"),
        ({"replay": 3}, "replay is 3"),
        ({"inputs": [torch.ones(1, device="meta")]}, "meta"),
        ({"inputs": [torch.ones(1), torch.ones(1, device="meta")]}, "2 devices"),
        ({"inputs": [torch.ones(3).to_sparse()]}, "strided"),
        ({"vary": [lambda: -1]}, "live rows"),
    ],
)
def test_wrong_arguments_are_told(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(GraphUsageError, match=words):
        check(lambda *x: torch.ones(1) * 2, **arguments)


def test_an_unknown_backend_and_one_that_is_not_here_are_told() -> None:
    with pytest.raises(GraphUsageError, match="auto, software, cuda"):
        assert_replay_equals_eager(lambda: 1, backend="metal")
    if not torch.cuda.is_available():
        with pytest.raises(GraphUsageError, match="cannot be used"):
            assert_replay_equals_eager(lambda: 1, backend="cuda")


def test_a_check_within_a_check_is_refused_and_nothing_is_stuck() -> None:
    def nested(x: Any) -> Any:
        check(lambda x: x * 2, [x])
        return x

    with pytest.raises(GraphUsageError, match="within another"):
        check(nested, [torch.ones(1)])
    check(lambda x: x * 2, [torch.ones(1)])


def test_the_inputs_keep_their_memory() -> None:
    x = torch.randn(4)
    place = x.data_ptr()
    check(lambda x: x.add_(1), [x])
    assert x.data_ptr() == place


def test_inference_tensors_can_be_inputs() -> None:
    with torch.inference_mode():
        x, cache = torch.randn(4), torch.zeros(4)
        check(lambda x: cache.copy_(x) * 2, [x])
    check(lambda x: x * 2, [x])
