"""The rounds of a comparison: change the inputs, run eager code, poison, replay, compare."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.interface.backend import Region
from pytest_cudafork.capture.interface.lines import shown
from pytest_cudafork.capture.interface.progress import now_at
from pytest_cudafork.capture.replay.extra_checks import padding, randomness, uninitialized
from pytest_cudafork.capture.replay.observed import unlike_line
from pytest_cudafork.capture.replay.refill import Refill
from pytest_cudafork.capture.replay.stimulus import Poison, Stimulus, check_rows, rows_of
from pytest_cudafork.capture.replay.subject import Before, Subject
from pytest_cudafork.capture.state.compare import (
    Difference,
    Tolerance,
    differences,
    frozen_copy,
    leaves,
)
from pytest_cudafork.capture.state.tensors import Saved, alias, copies, has_memory, storage_of
from pytest_cudafork.capture.story.findings import CheckLog
from pytest_cudafork.capture.story.hints import Symptoms, explain
from pytest_cudafork.compat.torch_graphs.tensors import version_of
from pytest_cudafork.errors import CudaForkWarning, ReplayFailedError


class _Replayed(NamedTuple):
    """What a replay left."""

    outputs: dict[str, Any]
    unwritten: dict[str, torch.Tensor]  # where the poison is still there
    effects: dict[str, Any]


class Rounds:
    """Runs the rounds on one subject and notes what they show."""

    def __init__(
        self,
        subject: Subject,
        log: CheckLog,
        tolerance: Tolerance,
        *,
        poison: bool = True,
        refills: bool = False,
        compare_effects: bool = True,
        in_a_row: bool = False,
        cuda: bool = False,
    ) -> None:
        self._in_a_row = in_a_row
        self._subject, self._log, self._tolerance = subject, log, tolerance
        self._poison, self._refills, self._effects = poison, refills, compare_effects
        self._cuda = cuda
        self._base = Saved(subject.inputs())
        self._first: dict[str, Any] | None = None
        self._effects_then: dict[str, Any] = {}
        self._stale: dict[str, torch.Tensor] = {}  # what refills have left of other batches
        self.drew = False
        self.replays = 0
        self._round = 0
        self.compared = 0  # tensors, in all rounds
        self.failed = False  # a replay could not be run: no more of them
        self.could_tell = False  # a replay that does nothing would have been noticed
        self.differs_anew = ""  # how a replay differs from eager code that begins anew
        self._anew = subject.eager_anew()

    def run(self, stimulus: Stimulus) -> None:
        """Do one round; what is wrong is noted once for each output."""
        if self.failed:
            return
        self._round += 1
        now_at(f"check of a graph, round {self._round}: {stimulus}")
        if stimulus.restore:
            self._base.restore()
        expected: dict[str, Any] | None = None
        idle = False
        if self._refills and stimulus.kind == "vary":
            rows, expected = self._refill(stimulus)
        else:
            varies = stimulus.kind == "vary"
            before_change = self._versions() if varies else {}
            rows = rows_of(stimulus.apply(), stimulus)
            idle = varies and not self._base.changed() and before_change == self._versions()
        self._subject.after_change(stimulus)
        before = self._save()
        # The replay comes first: eager code may mend on the host what a graph cannot mend.
        first = self._replay(stimulus, before)
        if first is None:
            return
        effects: dict[str, Any] = {}
        if expected is None:
            expected, effects = self._eager(before)
        self._compare(first, expected, effects, stimulus, rows, before, 0)
        if self._anew is not None and not self._log.findings and stimulus.kind in ("same", "vary"):
            self._compare_anew(self._anew, first, stimulus, rows, before)
        if rows and not self._log.findings:
            total = max((len(one) for one in first.outputs.values() if _has_rows(one)), default=0)
            padding(self._subject, self._log, before, str(stimulus), rows, total)
        if stimulus.kind in ("same", "other"):
            second = self._replay(stimulus, before)
            if second is not None:
                self._compare(second, expected, effects, stimulus, rows, before, 1)
        if stimulus.kind == "same" and self._in_a_row:
            self._replay_in_a_row(stimulus, before)
        if self._first is not None and not self.could_tell:
            self.could_tell = bool(differences(self._first, expected, Tolerance(0, 0)))
        if self._first is None:
            self._first, self._effects_then = expected, effects
        elif idle:
            self._warn_if_equal(stimulus, expected, effects)

    def _versions(self) -> dict[str, int]:
        """Return how often each reachable tensor was changed."""
        return {path: version_of(one) for path, one in self._subject.reachable().items()}

    def _warn_if_equal(
        self, stimulus: Stimulus, expected: dict[str, Any], effects: dict[str, Any]
    ) -> None:
        """Tell of a change that changed neither inputs nor eager results."""
        exact = Tolerance(0, 0)
        first = self._first or {}
        same = (
            not differences(first, expected, exact) and effects.keys() == self._effects_then.keys()
        )
        if same and not differences(self._effects_then, effects, exact):
            text = (
                f"{stimulus} changed no static input, and eager results are the same as "
                "without it: it tests nothing. Let it change inputs in place (fill_, copy_)"
            )
            self._log.note(text)
            warnings.warn(text, CudaForkWarning, stacklevel=2)

    def _refill(self, stimulus: Stimulus) -> tuple[int | None, dict[str, Any]]:
        """Refill once; what it leaves is clean for eager code, and of another batch afterwards."""
        refill = Refill(self._subject.inputs(), self._stale)
        with refill.watched():
            rows = rows_of(stimulus.apply(), stimulus)
        refill.leave(clean=True)
        before = self._save()
        expected, _ = self._eager(before)
        refill.leave(clean=False)
        return rows, expected

    def _compare_anew(
        self,
        anew: Callable[[], Any],
        replayed: _Replayed,
        stimulus: Stimulus,
        rows: int | None,
        before: Before,
    ) -> None:
        """Compare with eager code that keeps nothing of the runs before.

        Code that carries on by intention differs on the first inputs already: then it says nothing.
        """
        runs: list[dict[str, Any]] = []
        try:
            for _ in range(2):
                runs.append(frozen_copy(anew(), self._subject.name))
                before.restore()
        except Exception as error:  # code may refuse to begin twice
            self._log.cannot("lazy-init-skipped (begun anew)", f"{type(error).__name__}: {error}")
            self._anew = None
            return
        finally:
            before.restore()
        wrong = differences(runs[0], replayed.outputs, self._tolerance, rows)
        if wrong and (
            stimulus.kind == "same" or differences(runs[0], runs[1], self._tolerance, rows)
        ):
            self._anew = None
        elif wrong:
            self.differs_anew = f"{wrong[0].what}; after {stimulus}"
            self._anew = None

    def _replay_in_a_row(self, stimulus: Stimulus, before: Before) -> None:
        """Replay once more from what a replay has left beside the inputs, and compare from there.

        Eager code that is another function may begin anew where the graph goes on.
        """
        if self._log.findings or self._replay(stimulus, before, restore=False) is None:
            return
        before.inputs.restore()
        then = self._save()
        again = self._replay(stimulus, then)
        if again is not None:
            expected, _ = self._eager(then)
            self._compare(again, expected, {}, stimulus, None, then, 1)
        before.restore()

    def _save(self) -> Before:
        return Before.of(self._subject, cuda=self._cuda)

    def _eager(self, before: Before) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run eager code; return its outputs and what it changed."""
        expected = frozen_copy(self._subject.eager(), self._subject.name)
        self.drew = self.drew or before.randomness.has_advanced()
        effects = self._changed(before)
        before.restore()
        return expected, effects

    def _changed(self, before: Before) -> dict[str, Any]:
        """Return copies of what lies within reach and is not as it was before."""
        paths = before.changed()
        if not paths:  # mostly so, and to look for what is within reach takes much longer
            return {}
        present = {**self._subject.reachable(), **self._subject.inputs()}
        return dict(copies({path: present[path] for path in paths if path in present}))

    def _replay(
        self, stimulus: Stimulus, before: Before, *, restore: bool = True
    ) -> _Replayed | None:
        """Replay on poisoned outputs; None if it could not be done.

        Afterwards everything is as before, unless ``restore`` is False.
        """
        if self.failed:
            return None
        before.restore()
        poison = self._poisoned()
        try:
            result = self._subject.replay()
        except ReplayFailedError as error:
            self._failed(error, f"after {stimulus}")
            return None
        self.replays += 1
        outputs = frozen_copy(result, self._subject.name)
        unwritten = poison.left(leaves(result, self._subject.name)) if poison is not None else {}
        self.could_tell = self.could_tell or bool(unwritten)
        effects = self._changed(before)
        if restore:
            before.restore()
        return _Replayed(outputs, unwritten, effects)

    def _compare(
        self,
        replayed: _Replayed,
        expected: dict[str, Any],
        effects: dict[str, Any],
        stimulus: Stimulus,
        rows: int | None,
        before: Before,
        number: int,
    ) -> None:
        wrong = differences(expected, replayed.outputs, self._tolerance, rows)
        if rows is not None:
            check_rows(rows, expected, bool(effects), stimulus)
        if rows != 0:
            self.compared += sum(isinstance(one, torch.Tensor) for one in expected.values())
        if effects and self._effects:
            present = {**self._subject.reachable(), **self._subject.inputs()}
            gone = {*self._subject.moved(), *self._subject.written}
            wanted = {path: value for path, value in effects.items() if path not in gone}
            self.compared += len(wanted)
            wrong += differences(wanted, {**present, **replayed.effects}, self._tolerance)
        wrong += self._changed_alone(replayed.effects, effects)
        if wrong and not self._is_reproducible(expected, effects, before, rows):
            self._irreproducible(wrong[0], replayed, stimulus, before)
            wrong = []
        for one in wrong:
            got = {**replayed.outputs, **replayed.effects}.get(one.path)
            want = {**expected, **effects}.get(one.path)
            self._note(one, stimulus, want, got, replayed.unwritten.get(one.path), number)

    def _changed_alone(self, replayed: dict[str, Any], effects: dict[str, Any]) -> list[Difference]:
        """Compare the inputs that the replay changed and eager code did not.

        Other memory may well be changed by the replay alone, as a workspace that eager code has
        left for a bigger one.
        """
        inputs = self._subject.inputs()  # all is as before by now
        changed = {path: inputs[path] for path in replayed if path in inputs}
        if changed:
            names = ", ".join(changed)
            self._log.note(f"a replay changes {names} in place: fill it anew before the next one")
        alone = {path: one for path, one in changed.items() if path not in effects}
        return differences(alone, replayed, self._tolerance) if self._effects else []

    def _irreproducible(
        self, one: Difference, replayed: _Replayed, stimulus: Stimulus, before: Before
    ) -> None:
        """Decide what it means that eager code never gives the same: on the GPU, or in Python."""
        cause = self._effects and self._subject.is_own_reference
        if cause:
            uninitialized(self._subject, self._log, self._tolerance, cuda=self._cuda)
            cause = not any(one.check == "uninitialized-read" for one in self._log.findings)
        again = self._replay(stimulus, before) if cause else None
        where = ""
        with contextlib.suppress(Exception):  # the line is a courtesy
            where = unlike_line(self._subject.eager, before.restore)
        before.restore()
        if again is None or differences(replayed.outputs, again.outputs, self._tolerance):
            at = f", first at {shown(where)}" if where else ""
            text = (
                f"eager code is not reproducible: two runs on the same inputs differ{at} by more "
                "than the tolerance, so its difference from the replay says nothing"
            )
            if f"replay-differs ({one.path})" not in self._log.skipped:
                self._log.cannot(f"replay-differs ({one.path})", text)
                if not self._log.findings:
                    warnings.warn(text, CudaForkWarning, stacklevel=2)
            return
        self._log.add(
            "replay-differs",
            f"{one.what}; after {stimulus}. Eager code gives something else each time, and "
            "the replay always the same",
            path=one.path,
            where=where,
            why="it looks frozen: what Python counts or draws is another number in the next call, "
            "and the graph keeps the value of its capture",
            todo="count in a tensor that the graph itself changes; draw from torch's generator",
        )

    def _is_reproducible(
        self,
        expected: dict[str, Any],
        effects: dict[str, Any],
        before: Before,
        rows: int | None,
    ) -> bool:
        """Whether eager code gives the same again, from the memory before it or after it."""
        if self._refills:
            return True
        before.restore()
        again = [frozen_copy(self._subject.eager(), self._subject.name)]
        before.restore()
        # A function may remember on the host what it has put into memory within reach.
        present = self._subject.reachable()
        for path, value in effects.items():
            if path in present and present[path].shape == value.shape:
                alias(present[path]).copy_(value)
        again.append(frozen_copy(self._subject.eager(), self._subject.name))
        before.restore()
        return any(not differences(expected, one, self._tolerance, rows) for one in again)

    def _poisoned(self) -> Poison | None:
        """Poison the outputs that are not inputs as well."""
        outputs = self._subject.outputs() if self._poison else None
        if outputs is None:
            return None
        kept = {storage_of(tensor) for tensor in self._subject.inputs().values()}
        kept |= self._subject.read_storages()
        found = {
            path: leaf
            for path, leaf in leaves(outputs, self._subject.name).items()
            if isinstance(leaf, torch.Tensor) and storage_of(leaf) not in kept
        }
        return Poison(found)

    def _note(
        self,
        one: Difference,
        stimulus: Stimulus,
        expected: Any,
        got: Any,
        unwritten: torch.Tensor | None,
        number: int,
    ) -> None:
        graph = self._subject.graph
        symptoms = Symptoms(
            stimulus.kind == "other",
            self._first,
            expected,
            got,
            unwritten,
            number,
            self._refills,
            graph.recording.nodes if graph is not None else None,
        )
        check, words, why, todo = explain(one, symptoms)
        when = f"after {stimulus}" + (", in the second replay" if number else "")
        known = {(found.check, found.path) for found in self._log.findings}
        if not known & {
            (check, one.path),
            ("replay-differs", one.path),
            ("no-op-replay", one.path),
        }:
            clues, where = "", ""
            if check == "replay-differs":
                with contextlib.suppress(Exception):  # they are a courtesy
                    clues = self._subject.clues()
                    where = self._line_that_writes(one.path)
            self._log.add(
                check, f"{words}; {when}{clues}", path=one.path, where=where, why=why, todo=todo
            )

    def _line_that_writes(self, path: str) -> str:
        """Return the line of the first work in the graph that writes an output's memory.

        Memory of a graph is lent several times: only the last that lies there is meant.
        """
        graph = self._subject.graph
        outputs = leaves(self._subject.outputs(), self._subject.name)
        tensor = {**self._subject.reachable(), **self._subject.inputs(), **outputs}.get(path)
        if graph is None or not isinstance(tensor, torch.Tensor) or not has_memory(tensor):
            return ""
        covered = Region.under(tensor, 0, storage_of(tensor), lambda: None)
        found = [
            (region.storage, work.where)
            for work in graph.recording.work or ()
            for region in (work.writes if work.exact else (*work.writes, *work.reads))
            if region.overlaps(covered)
        ]
        return next((where for storage, where in found if storage == found[-1][0]), "")

    def asides(self, *, rng: bool) -> None:
        """Check random numbers, where there are any, and reads of memory that nobody filled."""
        if self.failed:
            return
        now_at("check of a graph: random numbers, memory that nobody fills")
        if rng or self.drew:
            try:
                self.replays += randomness(self._subject, self._log, cuda=self._cuda)
            except ReplayFailedError as error:
                self._failed(error, "without anything in between")
                return
        uninitialized(self._subject, self._log, self._tolerance, cuda=self._cuda)

    def _failed(self, error: ReplayFailedError, when: str) -> None:
        self.failed = True
        found = error.finding
        what = f"{found.what} (replay {self.replays + 1}, {when})"
        self._log.add_finding(dataclasses.replace(found, what=what))


def _has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0
