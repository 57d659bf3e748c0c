"""What CUDA itself says of a program: is it captured, and does a replay equal eager code?

None of the plugin's checks takes part. A program is built twice from one seed. One stays eager; the
other is warmed up, captured, and replayed on poisoned outputs after the same changes of the inputs.
For want of a GPU the software graph can take CUDA's place, which tells whether a program is sound.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.specimens.graph_programs.program import Case, Pair, Place, Program, Verdict

__all__ = ["Answer", "ask"]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What was seen."""

    verdict: Verdict | None  # None: the program does not even run
    words: str


@dataclasses.dataclass
class _Side:
    """A program that was built: how it runs, and what may be changed."""

    call: Callable[[], Any]
    inputs: list[torch.Tensor]
    vary: list[Callable[[], Any]]
    first: list[torch.Tensor]
    case: Case | Pair
    kept: list[Any] = dataclasses.field(default_factory=list)

    @property
    def refills(self) -> bool:
        """Whether changes stand for batches, prepared one after another in the same memory."""
        return bool(self.case.options.get("refills"))

    def restore(self) -> None:
        with torch.no_grad():
            for one, value in zip(self.inputs, self.first, strict=True):
                one.copy_(value)

    def change(self, step: int) -> int | None:
        """Put the first contents back and do one change; return the number of live rows."""
        if not self.refills or step < 0:
            self.restore()  # else what the batch before left is still there
        if not 0 <= step < len(self.vary):
            return None
        with torch.no_grad():
            rows = self.vary[step]()
        return rows if type(rows) is int else None


def ask(program: Program, backend: str = "cuda") -> Answer:
    """Build a program, capture it, replay it and compare."""
    try:
        reference, graphed = _built(program, backend), _built(program, backend)
        if not _is_fresh(reference.case):
            reference.call()
        own = isinstance(graphed.case, Case) and graphed.case.options.get("replay")
        if not own:
            _warm_up(graphed, backend)
    except Exception as error:  # whatever it is: the program is no program
        return Answer(None, f"{type(error).__name__}: {error}"[:400])
    if own:
        replay, pool = own, None
    else:
        try:
            replay, pool = _capture(graphed, backend)
        except Exception as error:
            return Answer(Verdict.REFUSED, f"{type(error).__name__}: {error}"[:300])
    return _compare(program, reference, graphed, replay, pool, backend)


def _built(program: Program, backend: str) -> _Side:
    torch.manual_seed(0)
    case = program.build(Place(backend))
    if isinstance(case, Pair):
        inputs = _tensors(dict(case.persistent))

        def call() -> Any:
            return _outputs(case, _forward(case, warmup=False)())

        first = [one.detach().clone() for one in inputs]
        return _Side(call, inputs, list(case.vary), first, case)
    inputs = _tensors(case.inputs)
    fn = case.fn

    def call_it() -> Any:
        if isinstance(case.inputs, dict):
            return fn(**case.inputs)
        return fn(*case.inputs)

    first = [one.detach().clone() for one in inputs]
    return _Side(call_it, inputs, list(case.vary), first, case)


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return []


def _forward(pair: Pair, *, warmup: bool) -> Callable[[], Any]:
    made = (
        pair.create(pair.desc, warmup)
        if len(_parameters(pair.create)) > 1
        else pair.create(pair.desc)
    )
    forward = made[0] if isinstance(made, tuple) else made
    takes = any(p.default is p.empty for p in _parameters(forward))
    return (lambda: forward("NONE")) if takes else forward


def _outputs(pair: Pair, result: Any) -> Any:
    given = pair.options.get("outputs")
    return given() if given is not None else result


def _is_fresh(case: Case | Pair) -> bool:
    return isinstance(case, Pair) or case.fresh or bool(case.options.get("refills"))


def _warm_up(side: _Side, backend: str) -> None:
    with _side_stream(backend):
        if isinstance(side.case, Pair):
            _forward(side.case, warmup=True)()
        else:
            side.call()


def _capture(side: _Side, backend: str) -> tuple[Callable[[], Any], Any]:
    place = Place(backend)
    pool = place.pool()
    if isinstance(side.case, Pair):
        pair = side.case
        forward = _forward(pair, warmup=False)
        side.kept.append(forward)  # with the state, as a manager does
        for other in pair.options.get("other_descs", ()):
            _forward(dataclasses.replace(pair, desc=other), warmup=False)
        return place.graph_as_it_is(lambda: _outputs(pair, forward()), pool), pool
    return place.graph_as_it_is(side.call, pool), pool


@contextlib.contextmanager
def _side_stream(backend: str) -> Iterator[None]:
    if backend != "cuda":
        yield
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def _compare(
    program: Program,
    reference: _Side,
    graphed: _Side,
    replay: Callable[[], Any],
    pool: Any,
    backend: str,
) -> Answer:
    outputs: Any = None
    options = graphed.case.options
    others = list(options.get("interleave", ()))
    # Another function than the captured one may keep what it knows on the host.
    back = [] if options.get("eager") else [-1]
    for step in (-1, *range(len(graphed.vary)), *back):
        try:
            rows = graphed.change(step)
            freed = _taken_by_others(backend)
            if _is_fresh(reference.case):
                reference = _fresh(program, step, backend)
            else:
                reference.change(step)
            if pool is not None and outputs is not None:
                _poison(outputs, pool, backend)
            for number in range(len(others)):
                others[number]()
                if pool is not None:
                    Place(backend).graph_as_it_is(others[number], pool)()
                mine = reference.case.options["interleave"][number]
                mine()
                mine()
                freed += _taken_by_others(backend)
            torch.manual_seed(1000 + step)
            outputs = replay()
            del freed
            if backend == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            return Answer(Verdict.WRONG, f"step {step}: {type(error).__name__}: {error}"[:300])
        torch.manual_seed(1000 + step)
        expected = _expected(reference)
        said = _difference(expected, outputs, rows, options)
        if not options.get("eager") and not graphed.refills:
            said = said or _difference(reference.inputs, graphed.inputs, None, options)
        if not said and options.get("rng"):
            said = _same_again(replay, outputs)
        if said:
            return Answer(Verdict.WRONG, f"step {step}: {said}"[:300])
    return Answer(Verdict.RIGHT, "")


def _taken_by_others(backend: str) -> list[torch.Tensor]:
    """Take what memory was freed, as anybody may: a graph that still reads it must not be lucky."""
    if backend != "cuda":
        return []
    sizes = [1 << power for power in range(9, 18)] * 24
    return [torch.full((size,), 0x7F, dtype=torch.uint8, device="cuda") for size in sizes]


def _expected(side: _Side) -> Any:
    eager = side.case.options.get("eager")
    if eager is None:
        return side.call()
    if not _parameters(eager):
        return eager()
    given = side.case.inputs  # type: ignore[union-attr]
    return eager(**given) if isinstance(given, dict) else eager(*given)


def _fresh(program: Program, step: int, backend: str) -> _Side:
    """Build it anew, with the contents that a change brings and nothing that was kept."""
    made = _built(program, backend)
    for earlier in range(step):
        made.change(earlier)  # so that random contents are the same
    made.restore()
    made.change(step)
    return made


def _poison(outputs: Any, pool: Any, backend: str) -> None:
    """Overwrite outputs that the graph owns."""
    if backend != "cuda":
        return
    owned = [
        (one["address"], one["address"] + one["total_size"])
        for one in torch.cuda.memory_snapshot()
        if tuple(one["segment_pool_id"]) == tuple(pool)
    ]
    for one in _tensors(outputs):
        storage = one.untyped_storage()
        if any(start <= storage.data_ptr() < end for start, end in owned):
            raw = torch.empty(0, dtype=torch.uint8, device=one.device).set_(storage)
            raw.fill_(0xFF)


def _difference(expected: Any, got: Any, rows: int | None, options: dict[str, Any]) -> str:
    wanted, found = _tensors(expected), _tensors(got)
    if len(wanted) != len(found):
        return f"{len(found)} outputs instead of {len(wanted)}"
    near = {name: options[name] for name in ("rtol", "atol") if options.get(name) is not None}
    for number, (want, have) in enumerate(zip(wanted, found, strict=True)):
        live = slice(None) if rows is None or not want.dim() else slice(rows)
        want, have = (one.detach()[live] if one.dim() else one.detach() for one in (want, have))
        try:
            torch.testing.assert_close(have, want, equal_nan=True, check_stride=False, **near)
        except AssertionError as error:
            return f"output {number}: {' '.join(str(error).split())}"
    return ""


def _same_again(replay: Callable[[], Any], outputs: Any) -> str:
    before = [one.clone() for one in _tensors(outputs)]
    again = _tensors(replay())
    if all(torch.equal(one, other) for one, other in zip(before, again, strict=True)):
        return "two replays draw the same numbers"
    return ""


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        tree = [getattr(tree, one.name) for one in dataclasses.fields(tree)]
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return [one for each in tree for one in _tensors(each)]
    return []
