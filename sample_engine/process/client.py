"""How a front end talks to an engine core: one interface, with and without a process between.

What goes through it is requests and tokens; text is made of them in ``llm``.
"""

from __future__ import annotations

import abc
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sample_engine import errors
from sample_engine.batch.outputs import CoreOutput
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import EngineConfig, WorkerMethod
from sample_engine.errors import (
    ConfigError,
    EngineDeadError,
    EngineError,
    PromptError,
    RemoteError,
    WeightsError,
)
from sample_engine.process.core_handle import CoreHandle
from sample_engine.process.core_process import Core, CoreFactory, make_engine_core, refusal
from sample_engine.process.interrupts import interrupts_deferred
from sample_engine.process.messages import (
    Abort,
    Add,
    Failed,
    MessageError,
    Metrics,
    MetricsWanted,
    Outputs,
    Ready,
    Stage,
    ToFrontEnd,
    why_not_sent,
)
from sample_engine.process.start_method import StartDecision, choose_start_method
from sample_engine.process.start_ranks import seconds_of

__all__ = ["START_SECONDS_ENV", "CoreClient", "InprocClient", "ProcessClient", "make_client"]

START_SECONDS_ENV = "SAMPLE_ENGINE_START_SECONDS"
_START_SECONDS = 600.0
_STOP_SECONDS = 10.0
_ANSWER_SECONDS = 60.0


class CoreClient(abc.ABC):
    """An engine core, as a front end sees it. One thread at a time may use it."""

    info: Mapping[str, Any]

    @abc.abstractmethod
    def check(self) -> None:
        """Raise :class:`EngineDeadError` if nothing can be asked: dead, or another process' core.

        It waits for nothing, a lock included.
        """

    @abc.abstractmethod
    def add_request(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        """Queue a request. One that the core refuses ends with an output that says why.

        Raises :class:`PromptError` for one that cannot even be said.
        """

    @abc.abstractmethod
    def abort(self, request_ids: Iterable[str]) -> None:
        """Nothing more is wanted of these; outputs on their way may still come.

        A core that is gone computes nothing anyway: the next call tells of it.
        """

    @abc.abstractmethod
    def wait_for_outputs(self, timeout: float | None = None) -> None:
        """Wait until there is something to get, at most ``timeout`` seconds.

        Without a process it waits for nothing. Ctrl-C may end the wait; nothing is lost by that.
        """

    @abc.abstractmethod
    def get_outputs(self, timeout: float | None = None) -> list[CoreOutput]:
        """What is new. Waits at most ``timeout`` seconds; without a process it computes a step."""

    @abc.abstractmethod
    def metrics(self) -> dict[str, Any]:
        """What happened so far, in numbers."""

    @abc.abstractmethod
    def shutdown(self) -> None:
        """Let go of everything, from any thread; twice does no harm.

        Calls of other threads that are under way end with :class:`EngineDeadError`.
        """


def make_client(
    config: EngineConfig,
    factory: CoreFactory = make_engine_core,
    decision: StartDecision | None = None,
) -> CoreClient:
    """Start a core as the configuration, the environment and the state of this process say."""
    if decision is None:
        decision = choose_start_method(config)
    if decision.method is WorkerMethod.INPROC:
        if config.tensor_parallel_size > 1:
            raise ConfigError(
                f"tensor_parallel_size={config.tensor_parallel_size} needs a process for each "
                f"rank, and the engine is to start none: {'; '.join(decision.reasons)}."
            )
        return InprocClient(config, factory, decision)
    return ProcessClient(config, factory, decision)


class InprocClient(CoreClient):
    """A core in this process: for debugging, and where no child may be started."""

    def __init__(self, config: EngineConfig, factory: CoreFactory, decision: StartDecision) -> None:
        self._owner = os.getpid()
        self._core: Core | None = factory(config)
        self._turn = threading.RLock()  # a step, or the end
        self._waiting: list[CoreOutput] = []
        self.info = {**self._core.info(), **_about(decision, [self._owner])}

    @property
    def _running(self) -> Core:
        if os.getpid() != self._owner:
            # Threads that torch computes with did not come along: a step would wait for them.
            raise EngineDeadError(
                f"The engine core runs in process {self._owner}, from which this one was forked: "
                "make a new engine here, with a process of its own (worker_method='spawn')."
            )
        core = self._core
        if core is None:
            raise EngineDeadError("The engine core was shut down: make a new engine.")
        return core

    def check(self) -> None:
        """Raise :class:`EngineDeadError` if there is no core here."""
        _ = self._running

    def add_request(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        """Queue a request."""
        _check_request(Add(request_id, list(prompt_token_ids), params))
        try:
            self._running.add_request(request_id, prompt_token_ids, params)
        except PromptError as error:
            self._waiting.append(refusal(request_id, error))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests."""
        with contextlib.suppress(EngineDeadError):
            self._running.abort(list(request_ids))

    def wait_for_outputs(self, timeout: float | None = None) -> None:
        """Do nothing: who gets outputs computes them."""

    def get_outputs(self, timeout: float | None = None) -> list[CoreOutput]:
        """Compute a step; ``timeout`` has no meaning here."""
        found, self._waiting = self._waiting, []
        self.check()  # before the lock: in a forked child nobody may be left to release it
        with self._turn:
            core = self._running
            if core.has_unfinished():
                try:
                    with interrupts_deferred():
                        found += core.step()
                except Exception:
                    self._core = None  # half a step is computed: nothing can be said of the rest
                    raise
        return found

    def metrics(self) -> dict[str, Any]:
        """What happened so far, in numbers."""
        return self._running.metrics()

    def shutdown(self) -> None:
        """Let go of the core; in a child that was forked from its owner, leave it alone."""
        if os.getpid() != self._owner:
            return
        core, self._core = self._core, None
        if core is not None:
            with self._turn:  # a step of another thread ends first
                core.shutdown()


class ProcessClient(CoreClient):
    """A core in a process of its own."""

    def __init__(
        self,
        config: EngineConfig,
        factory: CoreFactory,
        decision: StartDecision,
        start_seconds: float | None = None,
    ) -> None:
        if start_seconds is None:
            start_seconds = seconds_of(os.environ, START_SECONDS_ENV, _START_SECONDS)
        self._outputs: deque[CoreOutput] = deque()
        self._answers: dict[int, dict[str, Any]] = {}
        self._asked = 0
        self._failure: EngineError | None = None
        self._handle = CoreHandle(decision.method, config, factory)
        try:
            self.info = {**self._handshake(start_seconds), **_about(decision, self._handle.pids)}
        except BaseException:
            self._handle.end(0)
            raise

    def check(self) -> None:
        """Raise :class:`EngineDeadError` if the process is known to be gone."""
        self._handle.check()

    def add_request(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        """Queue a request."""
        message = Add(request_id, list(prompt_token_ids), params)
        _check_request(message)
        self._handle.send(message)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests."""
        self._handle.send(Abort(list(request_ids)), quiet=True)

    def wait_for_outputs(self, timeout: float | None = None) -> None:
        """Wait for outputs. Raises :class:`EngineDeadError` or :class:`RemoteError`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._outputs:
            self._raise_failure()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._take(left) and left is not None and left <= 0:
                break

    def get_outputs(self, timeout: float | None = None) -> list[CoreOutput]:
        """Wait for outputs. Raises :class:`EngineDeadError` or :class:`RemoteError`."""
        self.wait_for_outputs(timeout)
        found = list(self._outputs)
        self._outputs.clear()
        return found

    def metrics(self) -> dict[str, Any]:
        """Ask the core; it answers after the step that it is in."""
        self._asked += 1
        self._handle.send(MetricsWanted(self._asked))
        deadline = time.monotonic() + _ANSWER_SECONDS
        while self._asked not in self._answers:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{self._handle.name} has not answered for {_ANSWER_SECONDS:.0f} seconds."
                )
            self._take(1.0)
            self._raise_failure()
        return self._answers.pop(self._asked)

    def shutdown(self) -> None:
        """End the process: ask, then terminate, then kill."""
        self._handle.end(_STOP_SECONDS)

    def _handshake(self, seconds: float) -> dict[str, Any]:
        """Wait until the core is ready, with all its ranks."""
        deadline = time.monotonic() + seconds
        ready: dict[int, dict[str, Any]] = {}
        activity = "starting a Python interpreter and importing the core's loop"
        while (left := deadline - time.monotonic()) > 0:
            messages: list[ToFrontEnd] = []
            self._handle.receive(left, messages.append)
            for message in messages:
                if isinstance(message, Ready):
                    ready[message.pid] = message.info
                if isinstance(message, Stage):
                    activity = message.text
                self._note(message)
            self._raise_failure()
            if len(ready) == len(self._handle.pids):
                return ready[self._handle.pid]
        stacks = self._handle.stacks()
        raise EngineDeadError(
            f"{self._handle.name} was not ready after {seconds:g} seconds and was ended. It was "
            f"waited for: {activity}. Set {START_SECONDS_ENV} if it needs longer."
            + (f"\nIts stacks:\n{stacks}" if stacks else "")
        )

    def _take(self, timeout: float | None) -> bool:
        """Read what has come; whether anything has."""
        try:
            return self._handle.receive(timeout, self._note) > 0
        except MessageError as error:
            self._failure = error  # raised once all that came before it has been handed out
            return True

    def _raise_failure(self) -> None:
        error, self._failure = self._failure, None
        if error is not None:
            raise error

    def _note(self, message: ToFrontEnd) -> None:
        if isinstance(message, Outputs):
            self._outputs += message.outputs
        elif isinstance(message, Metrics):
            self._answers[message.number] = message.values
        elif isinstance(message, Failed):
            self._note_failure(message)

    def _note_failure(self, message: Failed) -> None:
        """Find what it came from, and end the engine. The error is raised as late, too."""
        try:
            cause = self._handle.cause_of(message, self._note)
        except EngineDeadError as error:
            self._failure = error
            return
        self._failure = _remote_error(cause, self._handle.name_of(cause.rank))
        why = f"ended after an error: {cause.error_type}: {cause.text}"
        self._handle.give_up(why, cause.rank)


def _check_request(message: Add) -> None:
    """Refuse what would not arrive as it was sent: numbers that are none, or too large."""
    why = why_not_sent(message)
    if why is not None:
        raise PromptError(
            f"Request {message.request_id!r} with {message.params!r} cannot be sent to the engine "
            f"core: {why}."
        )


def _remote_error(failed: Failed, name: str) -> EngineError:
    """The error of a core as one of this process, with the traceback of the other.

    An error of the engine's own at the start is raised as what it is, so that callers can filter on
    it whatever the start method. A setting or weights that are refused need no traceback: where in
    the core that was found helps nobody.
    """
    remote = RemoteError(
        f"{name} failed while {failed.activity}: {failed.error_type}: {failed.text}\n\n"
        f"The traceback in its process:\n{failed.traceback}"
    )
    kind = getattr(errors, failed.error_type, None) if failed.activity == "starting" else None
    if not (isinstance(kind, type) and issubclass(kind, EngineError)):
        return remote
    error = kind(failed.text)
    if not isinstance(error, (ConfigError, WeightsError)):
        error.__cause__ = remote
    return error


def _about(decision: StartDecision, pids: Sequence[int]) -> dict[str, Any]:
    """What the handshake adds to what the core says of itself. The core is rank 0."""
    return {
        "worker_method": decision.method.value,
        "worker_reasons": list(decision.reasons),
        "core_pid": pids[0],
        "rank_pids": list(pids),
    }
