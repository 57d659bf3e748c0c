"""The listener that judges captures and replays by what the history knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from pytest_cudafork.capture.interface.check_names import CHECK_FAILED
from pytest_cudafork.capture.interface.seen import Listener, SeenCapture
from pytest_cudafork.capture.judge.findings import Findings
from pytest_cudafork.capture.judge.host_numbers import HostNumbers
from pytest_cudafork.capture.judge.memory_checks import (
    await_results,
    check_filled,
    check_there,
)
from pytest_cudafork.capture.judge.replay_checks import RandomNumbers, check_work
from pytest_cudafork.capture.judge.shared_pool import SharedPool
from pytest_cudafork.capture.judge.stale import StaleData
from pytest_cudafork.capture.judge.stale_rows import StaleRows
from pytest_cudafork.capture.judge.warm_up import check_warm_up
from pytest_cudafork.capture.record.history import History
from pytest_cudafork.capture.record.recorder import silently


class Judge(Listener):
    """Comes after the recorder, which pauses the history meanwhile."""

    def __init__(self, history: History) -> None:
        self.findings = Findings()
        self._history = history
        self._stale = StaleData(history, self.findings)
        self._random = RandomNumbers(self.findings)
        self._numbers = HostNumbers(history, self.findings)
        self._pool = SharedPool(history, self.findings)
        self._rows = StaleRows(history, self.findings)

    def on_capture_end(self, capture: SeenCapture) -> None:
        """Learn what can be computed again; look for reads of what nothing has filled."""
        if not capture.captured or capture.uses is None:
            return
        self.findings.saw_capture(capture.backend)
        with self._beside_the_test(capture):
            check_filled(capture, self.findings)
            self._stale.captured(capture)
            self._pool.captured(capture)
            await_results(capture, self._history, self.findings)
        self.findings.event_ends()

    def on_replay_begin(self, capture: SeenCapture) -> None:
        """Judge what the graph is about to read."""
        if capture.uses is None:
            return
        self.findings.saw_replay(capture.backend)
        self.findings.replay_begins()
        with self._beside_the_test(capture):
            check_work(capture, self.findings)
            check_filled(capture, self.findings)  # of a shared fixture, each test is told
            check_there(capture, self.findings)
            self._pool.begins(capture)
            self._stale.replayed(capture)
            check_warm_up(capture, self.findings)
            self._rows.replayed(capture)
            self._numbers.replayed(capture)
            self._random.begins(capture)

    def on_replay_end(self, capture: SeenCapture, failed: BaseException | None) -> None:
        """Judge what the graph has done."""
        if failed is not None:
            self.findings.replay_raised()
        if capture.uses is not None and failed is None:
            with self._beside_the_test(capture):
                self._random.ends(capture)
                self._pool.replayed(capture)
                self._rows.ends(capture)
        self.findings.event_ends()

    def on_capture_elsewhere(self) -> None:
        """Count it."""
        self.findings.saw_elsewhere()

    def on_replay_elsewhere(self, capture: SeenCapture) -> None:
        """Know that its results are its own again, if another graph had overwritten them."""
        if capture.uses is not None:
            self._pool.recomputed(capture)

    def on_unseen_replay(self) -> None:
        """Count a replay that cannot be judged: nobody has seen what led to it."""
        self.findings.saw_replay_elsewhere()

    @contextlib.contextmanager
    def _beside_the_test(self, capture: SeenCapture) -> Iterator[None]:
        """Judge unseen, and let no error of the judging become one of the test.

        What is compared waits for the device, which the test may have made an error
        (``torch.cuda.set_sync_debug_mode``).
        """
        on_gpu = capture.backend == "cuda"
        strict = torch.cuda.get_sync_debug_mode() if on_gpu else 0
        try:
            if strict:
                torch.cuda.set_sync_debug_mode(0)
            with silently():
                yield
        except Exception as error:
            self.findings.cannot(f"{CHECK_FAILED}{type(error).__name__}: {error}")
        finally:
            if strict:
                torch.cuda.set_sync_debug_mode(strict)
