"""The engine core's process: its loop, how it ends, and how its errors reach the front end.

This runs in the child, whichever way it was started, and imports nothing of the front end's side.

The front end is heard by a thread, so that it never waits to be heard: an abort arrives during a
step, and a front end that writes while the core writes cannot block both.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, cast

from sample_engine.batch.outputs import CoreOutput
from sample_engine.batch.request import FinishReason
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import EngineConfig
from sample_engine.errors import PromptError, RankLostError
from sample_engine.parallel.place import RankPlace
from sample_engine.process.lock_step import (
    LeadingCore,
    RankCore,
    StepWatch,
    follow,
    may_be_eager,
)
from sample_engine.process.memory_file import MemoryFile
from sample_engine.process.messages import (
    MOST_BYTES,
    Abort,
    Add,
    Failed,
    MessageError,
    Metrics,
    MetricsWanted,
    Outputs,
    Ready,
    Stage,
    Stop,
    Stopped,
    ToCore,
    ToFrontEnd,
    decode_to_core,
    encode,
)
from sample_engine.process.stderr_log import StderrLog, keep_stderr_log

if TYPE_CHECKING:
    from sample_engine.graphs.execution import GraphExecution

__all__ = [
    "Core",
    "CoreFactory",
    "CoreOrder",
    "RankOrder",
    "make_engine_core",
    "refusal",
    "run_core",
]

# How long a step may still take once the front end is gone.
_ALONE_SECONDS = 2.0


class Core(Protocol):
    """What the loop needs of a core; ``engine_core.EngineCore`` is one."""

    def add_request(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        """Queue a request, or raise ``PromptError``."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests."""

    def step(self) -> list[CoreOutput]:
        """Compute a step."""

    def has_unfinished(self) -> bool:
        """Whether there is anything to compute."""

    def metrics(self) -> dict[str, Any]:
        """How it goes."""

    def info(self) -> dict[str, Any]:
        """What it has become."""

    def shutdown(self) -> None:
        """Let go of everything."""


# Makes a core of an EngineConfig. Where there are several ranks, each makes one of its own, and the
# RankPlace is the second argument; such a core is a lock_step.RankCore.
CoreFactory = Callable[..., Core]


class RankOrder(NamedTuple):
    """Which rank a process is to be. ``links``: of rank 0 to all others; of another one to rank 0.

    A step that takes more than ``step_seconds`` is one that a rank is stuck in.
    """

    rank: int
    size: int
    rendezvous: MemoryFile
    links: tuple[Connection, ...]
    step_seconds: float


class CoreOrder(NamedTuple):
    """What the process is told. ``to_close``: what a fork inherits and must not keep."""

    connection: Connection
    factory: CoreFactory
    config: EngineConfig
    front_end_pid: int
    stderr_log: StderrLog
    to_close: tuple[Connection, ...]
    ranks: RankOrder | None = None


def make_engine_core(
    config: EngineConfig,
    place: RankPlace | None = None,
    graph_execution: GraphExecution | None = None,
) -> Core:
    """Make the real core, or that of a rank. ``graph_execution``: in place of CUDA graphs."""
    from sample_engine.engine_core import EngineCore

    return EngineCore(config, graph_execution, place)


def refusal(request_id: str, error: Exception) -> CoreOutput:
    """Say that a request is refused, as its first and last output."""
    return CoreOutput(
        request_id,
        (),
        FinishReason.ERROR,
        error=str(error),
        error_type=type(error).__name__,
    )


def run_core(order: CoreOrder) -> NoReturn:
    """Be the engine core. The process ends here, with exit code 0 only if it was told to stop."""
    _settle_process(order)
    front_end = _FrontEnd(order)
    activity = "starting"
    core: Core | None = None
    code = 1
    try:
        front_end.send(Stage(text="building the engine core: imports, weights, KV cache"))
        core = _core_of(order)
        front_end.send(Ready(pid=os.getpid(), info=core.info()))
        activity = "running"
        if order.ranks is not None:
            core = _in_lock_step(cast(RankCore, core), order.ranks, front_end)
        if core is not None and _serve(core, front_end):
            activity = "shutting down"
            core.shutdown()
            front_end.send(Stopped())
        code = 0
    except _FrontEndGone:
        code = 0
    except BaseException as error:
        front_end.report(error, activity)
    _leave(code)


def _core_of(order: CoreOrder) -> Core:
    if order.ranks is None:
        return order.factory(order.config)
    rank, size, rendezvous, *_ = order.ranks
    return order.factory(order.config, RankPlace(rank, size, rendezvous.path()))


def _in_lock_step(core: RankCore, ranks: RankOrder, front_end: _FrontEnd) -> Core | None:
    """Return the core of rank 0, to be served; another rank follows that here, to the end."""
    watch = StepWatch(ranks.step_seconds, front_end.report_stuck)
    if ranks.rank == 0:
        return LeadingCore(core, ranks.links, watch)
    (link,) = ranks.links
    follow(core, link, watch, eager=may_be_eager(core, ranks.size))
    return None


def _settle_process(order: CoreOrder) -> None:
    """Undo what a fork inherits, and leave Ctrl-C to the front end, which ends this process."""
    for connection in order.to_close:
        connection.close()  # held here, it would hide the death of who has the other end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
    keep_stderr_log(order.stderr_log)
    _compute_with_one_thread()


def _compute_with_one_thread() -> None:
    """Let torch use one thread, as vLLM's workers do, unless ``OMP_NUM_THREADS`` says otherwise.

    Threads that wait for each other on cores that others use, too, can take fifty times as long.
    """
    if os.environ.get("OMP_NUM_THREADS"):
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # for a torch that is still to be imported
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _serve(core: Core, front_end: _FrontEnd) -> bool:
    """Schedule, run and answer until the front end says stop."""
    while True:
        outputs: list[CoreOutput] = []
        for message in front_end.heard(wait=not core.has_unfinished()):
            if isinstance(message, Stop):
                return True
            if isinstance(message, MetricsWanted):
                front_end.send(Metrics(number=message.number, values=core.metrics()))
            elif isinstance(message, Abort):
                core.abort(message.request_ids)
            else:
                outputs += _add(core, message)
        if core.has_unfinished():
            outputs += core.step()
        if outputs:
            front_end.send(Outputs(outputs=outputs))


def _add(core: Core, message: Add) -> list[CoreOutput]:
    try:
        core.add_request(message.request_id, message.prompt_token_ids, message.params)
    except PromptError as error:
        return [refusal(message.request_id, error)]
    return []


def _leave(code: int) -> NoReturn:
    """End without Python's long good-bye: libraries' threads and contexts go with the process."""
    for stream in (sys.stdout, sys.stderr):
        # Closed or gone: then there is nobody left to tell.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


class _FrontEndGone(Exception):
    """The front end has closed the pipe or died."""


class _FrontEnd:
    """The other end of the pipe, heard by a thread."""

    def __init__(self, order: CoreOrder) -> None:
        self._connection = order.connection
        self._pid = order.front_end_pid
        self._rank = order.ranks.rank if order.ranks is not None else 0
        self._sending = threading.Lock()  # the watch over steps may have something to say, too
        self._inbox: queue.SimpleQueue[ToCore | Exception] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="front end", daemon=True).start()

    def heard(self, *, wait: bool) -> list[ToCore]:
        """What has been said since the last time, in order; waits for something if asked to."""
        found: list[ToCore] = []
        while True:
            try:
                message = self._inbox.get(block=wait and not found)
            except queue.Empty:
                return found
            if isinstance(message, Exception):
                raise message
            found.append(message)

    def send(self, message: ToFrontEnd) -> None:
        """Say something; waits while the front end does not listen."""
        frame = encode(message)
        try:
            with self._sending:
                self._connection.send_bytes(frame)
        except OSError:
            raise _FrontEndGone from None

    def report(self, error: BaseException, activity: str) -> None:
        """Say that it is over; the traceback goes to stderr if there is nobody to hear it."""
        kind = type(error)
        name = kind.__qualname__
        if kind.__module__ not in ("builtins", "sample_engine"):
            name = f"{kind.__module__}.{name}"
        trace = "".join(traceback.format_exception(kind, error, error.__traceback__))
        try:
            self.send(
                Failed(
                    activity=activity,
                    error_type=name,
                    text=str(error),
                    traceback=trace,
                    rank=self._rank,
                )
            )
        except (_FrontEndGone, ValueError, TypeError):
            traceback.print_exception(kind, error, error.__traceback__)

    def report_stuck(self, text: str, stack: str) -> None:
        """Say that this rank cannot go on, most likely because of another one."""
        with contextlib.suppress(_FrontEndGone):
            self.send(
                Failed(
                    activity="running",
                    error_type=RankLostError.__name__,
                    text=text,
                    traceback=stack,
                    rank=self._rank,
                )
            )

    def _listen(self) -> None:
        try:
            for frame in self._frames():
                self._inbox.put(decode_to_core(frame))
        except MessageError as error:
            self._inbox.put(error)
            return
        self._inbox.put(_FrontEndGone())
        # If it does not end by itself: a step may take for ever, and nobody is left to stop it.
        time.sleep(_ALONE_SECONDS)
        os._exit(1)

    def _frames(self) -> Iterator[bytes]:
        """Yield frames until the pipe is closed or the front end's process is dead.

        A pipe alone does not tell of the death: another child of the front end, forked earlier, may
        hold its end open.
        """
        alive = _pidfd(self._pid)
        watched: list[Any] = [self._connection] if alive is None else [self._connection, alive]
        try:
            while self._connection in wait(watched):
                yield self._connection.recv_bytes(MOST_BYTES)
        except (EOFError, OSError):
            return


def _pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None: there is no such thing."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        reading, writing = os.pipe()  # it is dead: readable at once
        os.close(writing)
        return reading
    except (AttributeError, OSError):
        return None
