"""Captures torch's operators with its own samples, and says which are taken and which refused.

``python -m tests.gpu.operators.sweep --backend cuda OUT.json`` on a machine with a GPU asks CUDA
alone, without the plugin; ``--backend software`` asks the software graph. The operators and samples
are those by which torch tests itself (``torch.testing._internal``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import queue
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

__all__ = ["BROKEN", "DIFFERS", "NOT_JUDGED", "REFUSED", "TAKEN", "main"]

TAKEN, REFUSED, DIFFERS, BROKEN = "taken", "refused", "differs", "broken"
"""A capture: replays equal eager code; there is none; replays differ; eager code does not run."""

NOT_JUDGED = "not judged"
"""The backend cannot run it, and says so."""

SAMPLES = 4
MOST_SAMPLES = 100
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float16)
PROJECT = Path(__file__).parents[3]

Said = dict[str, Any]


def operators() -> list[Any]:
    """Return torch's own list of operators with their samples. On a GPU this touches CUDA."""
    if "expecttest" not in sys.modules:
        stub: Any = types.ModuleType("expecttest")  # of which the list of operators needs nothing
        stub.TestCase = object
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def name_of(operator: Any) -> str:
    """Return an operator's name, with its variant."""
    variant = operator.variant_test_name
    return f"{operator.name} ({variant})" if variant else str(operator.name)


class Samples:
    """A few samples of each operator: those of the one asked last are kept, and each used once.

    torch looks through all modules for each that it makes, which takes longer than all else.
    """

    def __init__(self) -> None:
        self._last: tuple[Any, list[Any]] = (None, [])

    def of(self, operator: Any, device: str) -> list[Any]:
        """Return the samples of an operator.

        Raises:
            Exception: whatever torch raises when it makes them.

        """
        if self._last[0] is not operator:
            self._last = operator, _samples(operator, device)
        return self._last[1]


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


def ask(operator: Any, number: int, backend: str, made: Samples) -> Said:
    """Capture an operator on its sample of this number."""
    device = "cuda" if backend == "cuda" else "cpu"
    try:
        samples = made.of(operator, device)
        if number >= len(samples):
            return {"said": "", "words": "no such sample"}
        sample = samples[number]

        def call() -> Any:
            return _function(operator)(sample.input, *sample.args, **sample.kwargs)

        torch.manual_seed(1)
        expected = _copies(call())
        if backend == "cuda":
            _on_another_stream(call)
    except Exception as error:
        return {"said": BROKEN, "words": f"{type(error).__name__}: {error}"[:300]}
    try:
        replay = _cuda(call) if backend == "cuda" else _software(call)
    except Exception as error:
        finding = getattr(error, "finding", None)
        judged = finding is None or finding.check != "not-judged"
        return {"said": REFUSED if judged else NOT_JUDGED, "words": _first_words(error)}
    if "empty" in operator.name:  # memory that nobody wrote holds anything
        return {"said": TAKEN, "words": ""}
    return _compared(replay, expected)


def _function(operator: Any) -> Any:
    """Return an operator's function as users write it, by its name at this moment."""
    found: Any = torch
    for part in operator.name.split("."):
        found = getattr(found, part, None)
    return found if getattr(found, "__name__", "") == operator.op.__name__ else operator


def _compared(replay: Callable[[], Any], expected: list[torch.Tensor]) -> Said:
    try:
        torch.manual_seed(1)
        found = _copies(replay())
        for one, other in zip(expected, found, strict=True):
            if one.element_size() == 1 and one.is_floating_point():
                one, other = one.float(), other.float()
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


def work(backend: str, seconds: int) -> None:
    """Answer for each operator whose number comes in: one line with what was said of its samples.

    The first line that goes out has the names of all operators. The process ends where a capture
    that failed has left it unusable.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known, made = operators(), Samples()
    out = sys.stdout
    sys.stdout = sys.stderr  # operators print
    _tell(out, [name_of(one) for one in known])
    for line in sys.stdin:
        answers = []
        for number in range(SAMPLES):
            signal.alarm(seconds)
            answer = ask(known[int(line)], number, backend, made)
            if answer["said"]:
                answers.append(answer)
            if answer["said"] == REFUSED and backend == "cuda" and not _can_capture():
                _tell(out, answers)
                return
        _tell(out, answers)


def _tell(out: Any, what: Any) -> None:
    out.write(json.dumps(what) + "\n")
    out.flush()


def _can_capture() -> bool:
    """Whether another capture works after one that failed."""
    try:
        torch.cuda.set_stream(torch.cuda.default_stream())
        torch.cuda.synchronize()
        x = torch.ones(4, device="cuda")
        replay = _cuda(lambda: x * 3)
        x.fill_(2)
        return bool((replay() == 6).all())
    except Exception:
        return False


class _Sweep:
    """Hands operators to workers, each of which is a fresh interpreter."""

    def __init__(
        self, backend: str, seconds: int, budget: float, wanted: Callable[[str], bool]
    ) -> None:
        self.found: dict[str, list[Said]] = {}
        self._command = [
            *(sys.executable, "-m", "tests.gpu.operators.sweep", "--work", "--backend", backend),
            *("--seconds", str(seconds), "-"),
        ]
        self._wanted = wanted
        self._end = time.monotonic() + budget
        self._waiting: queue.Queue[int] = queue.Queue()
        self._lock = threading.Lock()
        self._names: list[str] = []

    def run(self, jobs: int) -> None:
        """Ask about all operators."""
        threads = [threading.Thread(target=self._serve) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self) -> None:
        while time.monotonic() < self._end:
            with subprocess.Popen(
                self._command, cwd=PROJECT, text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            ) as worker:  # fmt: skip
                limit = threading.Timer(self._end - time.monotonic(), worker.kill)
                limit.start()
                finished = self._feed(worker)
                limit.cancel()
                worker.kill()
            if finished:
                return

    def _feed(self, worker: subprocess.Popen[str]) -> bool:
        """Give a worker operators as long as it answers; return whether none is left."""
        assert worker.stdin is not None
        assert worker.stdout is not None
        names = worker.stdout.readline()
        if not names:
            return False
        with self._lock:
            if not self._names:
                self._names = json.loads(names)
                for number, name in enumerate(self._names):
                    if self._wanted(name):
                        self._waiting.put(number)
        while True:
            try:
                number = self._waiting.get_nowait()
            except queue.Empty:
                return True
            try:
                worker.stdin.write(f"{number}\n")
                worker.stdin.flush()
            except BrokenPipeError:  # it ended after the answer before
                self._waiting.put(number)
                return False
            line = worker.stdout.readline()
            if line:
                self.found[self._names[number]] = json.loads(line)
            elif worker.poll() == 0:
                self._waiting.put(number)
                return False
            else:
                words = f"the process ended with {worker.wait()}"
                self.found[self._names[number]] = [{"said": BROKEN, "words": words}]
                return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask about all operators and write what was said."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--backend", choices=("software", "cuda"), required=True)
    parser.add_argument("--only", default="", help="operators whose name has this in it")
    parser.add_argument("--names", type=Path, help="a file with names, as JSON: only these")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=30, help="for one sample")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for all")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.work:
        work(given.backend, given.seconds)
        return 0
    names = set(json.loads(given.names.read_text(encoding="utf-8"))) if given.names else None

    def wanted(name: str) -> bool:
        return given.only in name and (names is None or name in names)

    sweep = _Sweep(given.backend, given.seconds, given.budget, wanted)
    sweep.run(given.jobs)
    about = {"torch": torch.__version__, "backend": given.backend}
    text = json.dumps({"about": about, "operators": dict(sorted(sweep.found.items()))}, indent=0)
    given.out.write_text(text, encoding="utf-8")
    counts: dict[str, int] = {}
    for answers in sweep.found.values():
        for each in answers:
            counts[each["said"]] = counts.get(each["said"], 0) + 1
    sys.stdout.write(f"{len(sweep.found)} operators on {given.backend}: {counts}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
