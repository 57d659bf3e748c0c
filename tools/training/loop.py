"""The training loop: time, schedule, progress, checks, interruption.

It always ends with the best weights so far in the hands of the caller: at the time limit, after a
signal, and when the loss is no longer a number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from sample_engine.errors import EngineError

__all__ = ["Budget", "Outcome", "compiled", "pick_device", "run", "schedule", "set_up_logging"]

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 10.0
_WARM_UP_STEPS = 50
_CHECKS = 10  # in the course of a training
_WAIT_STEPS = 10  # the device may be this many steps behind, so that time is known


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """How long to train: by time, or by steps where the result is to be the same again."""

    seconds: float
    steps: int | None = None
    started: float = dataclasses.field(default_factory=time.monotonic)

    def spent(self, step: int, since: float) -> float:
        """Return the share that is spent, 1 at the end; ``since`` is when the steps began."""
        if self.steps is not None:
            return step / self.steps
        # However long it took to get ready: half of the time is for training.
        left = max(self.started + self.seconds - since, self.seconds / 2)
        return (time.monotonic() - since) / left


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a training came to."""

    steps: int
    seconds: float
    best: float
    interrupted: bool


def schedule(spent: float, step: int) -> float:
    """Return the factor of the rates: a short warm-up, a plateau, a straight line to zero."""
    warm = min(1.0, (step + 1) / _WARM_UP_STEPS)
    return warm * min(1.0, max(0.0, (1.0 - spent) / 0.6))


def run(
    *,
    update: Callable[[float], Tensor],
    check: Callable[[], float],
    keep: Callable[[], None],
    budget: Budget,
    tokens_per_step: int,
) -> Outcome:
    """Train until the budget is spent.

    ``update`` does one step with the rates' factor and returns its loss; ``check`` measures, less
    is better; ``keep`` stores the weights as the best ones. Raises :class:`EngineError` where
    nothing was worth keeping.
    """
    since = shown = time.monotonic()
    step, shown_step, best, checks = 0, 0, math.inf, 0
    finite = True
    with _signals() as asked_to_stop:
        while finite and not asked_to_stop():
            spent = budget.spent(step, since)
            if spent >= (checks + 1) / _CHECKS or spent >= 1.0:
                checks = max(checks + 1, int(spent * _CHECKS))
                best = _checked(check, keep, best, f"{min(spent, 1.0):.0%}, step {step}")
            if spent >= 1.0:
                break
            loss = update(schedule(spent, step))
            step += 1
            if step % _WAIT_STEPS == 0:
                finite = math.isfinite(loss.item())
            now = time.monotonic()
            if now - shown >= _PROGRESS_SECONDS:
                rate = (step - shown_step) * tokens_per_step / (now - shown)
                _log.info(
                    "%4.0f s  %3.0f%%  step %d  loss %.4f  %.2f M tokens/s",
                    *(now - budget.started, 100 * spent, step, loss.item(), rate / 1e6),
                )
                shown, shown_step = now, step
        else:
            _log.warning("stopped at step %d: %s", step, "a signal" if finite else "no number")
            if finite:
                best = _checked(check, keep, best, f"at the signal, step {step}")
    if math.isinf(best):
        raise EngineError(f"Training stopped at step {step} with nothing worth keeping: see above.")
    seconds = time.monotonic() - budget.started
    return Outcome(steps=step, seconds=seconds, best=best, interrupted=asked_to_stop())


def _checked(
    check: Callable[[], float], keep: Callable[[], None], best: float, where: str
) -> float:
    """Measure, keep what is better than before, and return the best so far."""
    value = check()
    _log.info("check at %s: %.4f%s", where, value, "  (best)" if value < best else "")
    if value < best:
        keep()
        return value
    return best


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Turn the first SIGINT or SIGTERM into an answer to "shall I stop?"; a second one kills."""
    stop = threading.Event()
    previous: dict[int, Any] = {}

    def handle(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, previous[number])

    try:
        if threading.current_thread() is threading.main_thread():
            for number in (int(signal.SIGINT), int(signal.SIGTERM)):
                previous[number] = signal.signal(number, handle)
        yield stop.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def compiled(
    loss_of: Callable[[Tensor], Tensor], example: Tensor, wanted: bool
) -> Callable[[Tensor], Tensor]:
    """Return a loss compiled by ``torch.compile``, or as it is where that fails.

    ``example`` is a batch of the shape that all batches will have: one pass is made with it.
    """
    if not wanted:
        return loss_of
    started = time.monotonic()
    try:
        faster: Callable[[Tensor], Tensor] = torch.compile(loss_of, dynamic=False)
        faster(example).backward()
        _log.info("compiled in %.0f s", time.monotonic() - started)
    except Exception as error:  # whatever a compiler may raise: training goes on without it
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        _log.warning("torch.compile failed (%s: %s): not compiled", type(error).__name__, reason)
        return loss_of
    return faster


def pick_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def set_up_logging() -> None:
    """Send progress to standard output, line by line."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
