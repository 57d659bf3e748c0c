"""Captures torch's operators with its own samples, and says which are taken and which refused.

``python -m tests.gpu.operators.sweep --backend cuda OUT.json`` on a machine with a GPU asks CUDA
alone, without the plugin; ``--backend software`` asks the software graph. The operators and samples
are those by which torch tests itself (``torch.testing._internal``).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.support.forked_batches import Limits, Said, run_batches

__all__ = ["BROKEN", "DIFFERS", "REFUSED", "TAKEN", "main"]

TAKEN, REFUSED, DIFFERS, BROKEN = "taken", "refused", "differs", "broken"
"""A capture: replays equal eager code; there is none; replays differ; eager code does not run."""

SAMPLES = 4
MOST_SAMPLES = 100
OPERATORS_IN_A_PROCESS = 4
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float16)


class Piece(NamedTuple):
    """An operator, by its place in torch's list, and one of its samples."""

    name: str
    operator: int
    sample: int


@contextlib.contextmanager
def _no_gpu() -> Iterator[None]:
    """Let imports see no GPU, so that the process stays clean and can be forked."""
    before = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = before


def operators() -> list[Any]:
    """Return torch's own list of operators with their samples."""
    if "expecttest" not in sys.modules:
        stub: Any = types.ModuleType("expecttest")  # of which the list of operators needs nothing
        stub.TestCase = object
        sys.modules["expecttest"] = stub
    with _no_gpu():
        from torch.testing._internal.common_methods_invocations import op_db
    return list(op_db)


def name_of(operator: Any) -> str:
    """Return an operator's name, with its variant."""
    variant = operator.variant_test_name
    return f"{operator.name} ({variant})" if variant else str(operator.name)


def _samples(operator: Any, device: str) -> list[Any]:
    """Return a few samples, spread over those there are."""
    dtype = next((one for one in DTYPES if one in operator.dtypes), None)
    dtype = dtype or sorted(operator.dtypes, key=str)[0]
    torch.manual_seed(0)
    made = operator.sample_inputs(device, dtype, requires_grad=False)
    found = list(itertools.islice(made, MOST_SAMPLES))
    last = len(found) - 1
    places = sorted({last * step // (SAMPLES - 1) for step in range(SAMPLES)}) if found else []
    return [found[place] for place in places]


def ask(operator: Any, number: int, backend: str) -> Said:
    """Capture an operator on its sample of this number."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    device = "cuda" if backend == "cuda" else "cpu"
    try:
        samples = _samples(operator, device)
        if number >= len(samples):
            return {"said": "", "words": "no such sample"}
        sample = samples[number]

        def call() -> Any:
            return operator(sample.input, *sample.args, **sample.kwargs)

        torch.manual_seed(1)
        expected = _copies(call())
        if backend == "cuda":
            _on_another_stream(call)
    except Exception as error:
        return {"said": BROKEN, "words": f"{type(error).__name__}: {error}"[:300]}
    try:
        replay = _cuda(call) if backend == "cuda" else _software(call)
    except Exception as error:
        return {"said": REFUSED, "words": _first_words(error)}
    return _compared(replay, expected)


def _compared(replay: Callable[[], Any], expected: list[torch.Tensor]) -> Said:
    try:
        torch.manual_seed(1)
        found = _copies(replay())
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(other, one, equal_nan=True, rtol=1e-3, atol=1e-3)
    except (Exception, AssertionError) as error:
        return {"said": DIFFERS, "words": _first_words(error)}
    return {"said": TAKEN, "words": ""}


def _first_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _copies(result: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(result)
    return [each.detach().clone() for each in leaves if isinstance(each, torch.Tensor)]


def _on_another_stream(call: Callable[[], Any]) -> None:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def _cuda(call: Callable[[], Any]) -> Callable[[], Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> Any:
        graph.replay()
        torch.cuda.synchronize()
        return result

    return replay


def _software(call: Callable[[], Any]) -> Callable[[], Any]:
    from pytest_cudafork.capture.software.backend import SoftwareBackend

    backend = SoftwareBackend()
    backend.record(call)
    captured = backend.capture(call)

    def replay() -> Any:
        captured.replay()
        return captured.recording.result

    return replay


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask about all operators and write what was said."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--backend", choices=("software", "cuda"), required=True)
    parser.add_argument("--only", default="", help="operators whose name has this in it")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0, help="for one sample")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for all")
    given = parser.parse_args(arguments)
    known = operators()
    chosen = [at for at, one in enumerate(known) if given.only in name_of(one)]
    pieces = [Piece(name_of(known[at]), at, number) for at in chosen for number in range(SAMPLES)]
    size = OPERATORS_IN_A_PROCESS * SAMPLES
    batches = [pieces[at : at + size] for at in range(0, len(pieces), size)]
    keeps = {TAKEN, BROKEN, ""}
    if given.backend == "software":
        keeps |= {REFUSED, DIFFERS}
    said = run_batches(
        batches,
        lambda piece: ask(known[piece.operator], piece.sample, given.backend),
        lambda answer: answer["said"] in keeps,
        Limits(given.jobs, given.seconds, given.budget),
    )
    found: dict[str, list[Said]] = {}
    for piece in pieces:
        answer = said.get(id(piece), {"said": "not run", "words": ""})
        if "died" in answer or "raised" in answer:
            answer = {"said": BROKEN, "words": str(answer)[:300]}
        if answer["said"]:
            found.setdefault(piece.name, []).append(
                {"said": answer["said"], "words": answer["words"]}
            )
    about = {"torch": torch.__version__, "backend": given.backend}
    given.out.write_text(json.dumps({"about": about, "operators": found}, indent=0))
    counts: dict[str, int] = {}
    for answers in found.values():
        for each in answers:
            counts[each["said"]] = counts.get(each["said"], 0) + 1
    sys.stdout.write(f"{len(found)} operators on {given.backend}: {counts}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
