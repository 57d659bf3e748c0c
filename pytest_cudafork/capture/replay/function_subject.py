"""The two sides of a function's comparison: captured, or replayed by its own graph; and eager."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pytest_cudafork.capture.interface.backend import GraphBackend, Recording
from pytest_cudafork.capture.interface.lines import shown
from pytest_cudafork.capture.replay.capture_graph import capture_graph
from pytest_cudafork.capture.replay.cleanup import on_another_stream
from pytest_cudafork.capture.replay.kept import handed_over, inputs_behind, read_from_before
from pytest_cudafork.capture.replay.stimulus import Poison, Stimulus, parameters_of
from pytest_cudafork.capture.replay.subject import Subject
from pytest_cudafork.capture.state.host_values import carried_values, what_changed
from pytest_cudafork.capture.state.reach import Reachable, moved, reachable, storages, weights_of
from pytest_cudafork.capture.state.rollback import Carried
from pytest_cudafork.capture.state.tensors import Randomness, Saved, storage_of, tensors_below
from pytest_cudafork.capture.state.written import has_tensors, refuse_lazy, written_by
from pytest_cudafork.capture.story.findings import CheckLog
from pytest_cudafork.errors import CudaForkWarning


class FunctionSubject(Subject):
    """A function and its static inputs."""

    def __init__(
        self,
        fn: Callable[..., Any],
        inputs: Sequence[Any] | Mapping[str, Any],
        eager: Callable[..., Any] | None,
        replay: Callable[[], Any] | None,
        log: CheckLog,
    ) -> None:
        super().__init__()
        self._fn, self._inputs, self._own_replay = fn, inputs, replay
        self._eager = fn if eager is None else eager
        self.is_own_reference = self._eager is fn
        self._log = log
        self._last: Any = None
        self._then = self._host()
        self._doubtful: dict[str, tuple[int, int, str]] = {}
        self._carried: Carried | None = None  # what fn carried before the warm-up, if that changed
        self._read: set[int] | None = None  # what eager code reads that it has not written before
        self._remember_where()

    def call(self, fn: Callable[..., Any]) -> Any:
        """Call a function with the inputs, or without any if it takes none."""
        if fn is not self._fn and not _takes(fn, self._inputs):
            result = fn()
        elif isinstance(self._inputs, Mapping):
            result = fn(**self._inputs)
        else:
            result = fn(*self._inputs)
        refuse_lazy(result, "fn" if fn is self._fn else "eager")
        return result

    def capture(self, backend: GraphBackend, pool: Any) -> bool:
        """Warm up and capture; return whether there is a graph now."""
        before = Saved(self.inputs(), self.reachable())
        carried = Carried(self._fn)
        warmup = backend.record(lambda: self.call(self._fn))
        before.restore()
        if self.is_own_reference and carried.has_changed():
            self._carried = carried
        self._remember_where()
        self._then = self._host()
        self.graph = capture_graph(
            backend, lambda: self.call(self._fn), self._log, pool=pool, warmup=warmup
        )
        if self.graph is None:
            return False
        self._look_for_once(warmup)
        if self.is_own_reference and not has_tensors(self.graph.recording.result):
            self.find_written(self.graph.recording, {})
        self.after_change(Stimulus("the capture", lambda: None))
        self._remember_where()
        return True

    def observe(self, backend: GraphBackend) -> bool:
        """Look at what eager code does, for a graph that was captured elsewhere.

        What eager code overwrites, a right replay overwrites, too. Always True: there is a graph.
        """
        if not self.is_own_reference:
            return True
        drawn = Randomness(self.reach().generators, cuda=backend.name == "cuda")
        before = Saved(self.inputs(), self.reachable())
        recording = backend.record(lambda: self.call(self._fn))
        before.restore()
        drawn.restore()
        self._read = read_from_before(recording)
        if self._read is not None:
            known = {**self.inputs(), **self.reachable()}
            written, _ = written_by(recording, known)
            self.written = {
                path: tensor
                for path, tensor in written.items()
                if path in known and storage_of(tensor) not in self._read
            }
        return True

    def read_storages(self) -> set[int]:
        """Memory that a replay reads: as eager code does, and weights of the replay's own."""
        if self._own_replay is None:
            return super().read_storages()
        found = set(self._read) if self._read is not None else super().read_storages()
        return found | {storage_of(tensor) for tensor in weights_of(self._own_replay)}

    def _look_for_once(self, warmup: Recording) -> None:
        """Tell of work on the inputs that only the first call does: eager code has done it, too."""
        assert self.graph is not None, "there is a graph to compare with"
        kept = handed_over(warmup, self.graph.recording)
        once = inputs_behind(warmup, kept, self.inputs())
        if once and self.is_own_reference:
            inputs = ", ".join(dict.fromkeys(path for _, paths in once for path in paths))
            lines = (f"{one.work.name} at {shown(one.work.where)}" for one, _ in once)
            text = (
                f"the first call of fn computed something from {inputs} that the graph reads and "
                f"does not compute again ({', '.join(dict.fromkeys(lines))}). Eager code keeps it, "
                "too, so the comparison cannot tell whether that is right: give eager=, a "
                "computation without it"
            )
            self._log.note(text)
            warnings.warn(text, CudaForkWarning, stacklevel=2)

    def warn_of_first_call(self, words: str) -> None:
        """Tell that results depend on what the first call has kept of other inputs."""
        if any("the first call of fn computed" in note for note in self._log.notes):
            return
        text = (
            "fn keeps something that its first call made of the inputs: compared with code that "
            f"begins anew, {words}. Eager code keeps it, too, so the comparison cannot tell "
            "whether that is right: give eager=, a computation without it"
        )
        self._log.note(text)
        warnings.warn(text, CudaForkWarning, stacklevel=2)

    def eager(self) -> Any:
        """Run the eager code."""
        with on_another_stream():
            if self.written:
                Poison(self.scratch)  # what neither side writes is equal then
                return _with(self.call(self._eager), self.written)
            return self.call(self._eager)

    def eager_anew(self) -> Callable[[], Any] | None:
        """Return what calls the function with all objects as before the warm-up."""
        carried = self._carried
        if carried is None:
            return None

        def anew() -> Any:
            with carried.as_before():
                return self.eager()

        return anew

    def padded(self) -> Any:
        """Run the function itself; other eager code may leave the padding out."""
        return self.call(self._fn)

    def replay(self) -> Any:
        """Replay the graph."""
        if self._own_replay is not None:
            self._last = self._own_replay()
            refuse_lazy(self._last, "replay")
            return self.outputs()
        assert self.graph is not None, "there is a graph if there are rounds"
        self.graph.replay()
        return self.outputs()

    def outputs(self) -> Any:
        """The static outputs; those of a graph captured elsewhere are known after a replay."""
        result = self._last if self.graph is None else self.graph.recording.result
        return _with(result, self.written) if self.written else result

    def inputs(self) -> dict[str, torch.Tensor]:
        """The static inputs, as the list or mapping holds them now."""
        return tensors_below(self._inputs, "inputs")

    def reach(self) -> Reachable:
        """What the function carries, and what it writes beside its inputs."""
        inputs = self.inputs()
        found = reachable(self._fn, inputs.values(), self._log.note)
        beside = {path: tensor for path, tensor in self.written.items() if path not in inputs}
        return found._replace(tensors={**beside, **found.tensors})

    def _remember_where(self) -> None:
        """Remember where the inputs lie, and what the function carries, its names of inputs too."""
        self._where, self._reached = storages(self.inputs()), storages(self.reachable())
        self._carries = storages(self._carried_tensors())

    def _carried_tensors(self) -> dict[str, torch.Tensor]:
        """What the function carries, and what it writes beside its inputs, by path."""
        inputs = self.inputs()
        beside = {path: tensor for path, tensor in self.written.items() if path not in inputs}
        return {**beside, **reachable(self._fn).tensors}

    def _host(self) -> dict[str, Any]:
        return carried_values({"inputs": self._inputs}, self._fn)

    def clues(self) -> str:
        """Compare what the function carries with what it carried at capture."""
        return what_changed(self._then, self._host())

    def moved(self) -> set[str]:
        """The reachable tensors that lie elsewhere than in the capture."""
        return {path for path, _, _ in moved(self._reached, storages(self.reachable()), None)}

    def after_change(self, stimulus: Stimulus) -> None:
        """Note inputs that lie elsewhere now, and remember what the function carries that does.

        That is an input, too, of which the function has a name that was bound to another tensor.
        """
        self._log.did("moved-input")
        for path, old, new in moved(self._where, storages(self.inputs()), None):
            self._report(path, old, new, str(stimulus))
        uses = self.graph.recording.uses if self.graph is not None else None
        for path, old, new in moved(self._carries, storages(self._carried_tensors()), uses):
            self._doubtful.setdefault(path, (old, new, str(stimulus)))

    def report_moved(self) -> None:
        """Note reachable memory that has moved, if a replay was wrong: it may be unused by now."""
        if self._log.findings:
            for path, (old, new, when) in self._doubtful.items():
                self._report(path, old, new, when)

    def _report(self, path: str, old: int, new: int, when: str) -> None:
        self._log.add(
            "moved-input",
            f"{path} lay at {old:#x} and lies at {new:#x} after {when}; the graph still reads the "
            "old memory",
            path=path,
            why="a graph holds addresses: a name that is bound to a new tensor means nothing to "
            "it, and the old memory may belong to somebody else by then",
            todo="write into the tensor (copy_, fill_) instead of making a new one, and keep it "
            "alive as long as the graph",
        )


def _with(result: Any, written: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return what was written beside what was returned."""
    return {**({} if result is None else {"result": result}), **written}


def _takes(fn: Callable[..., Any], inputs: Sequence[Any] | Mapping[str, Any]) -> bool:
    parameters = parameters_of(fn)
    if parameters is None:
        return True
    signature = inspect.Signature(parameters)
    try:
        if isinstance(inputs, Mapping):
            signature.bind(**inputs)
        else:
            signature.bind(*inputs)
    except TypeError:
        return False
    return True
