"""Cores without a model for tests of processes, and what is looked at around them.

A core repeats its prompt for ever, so that every answer is known. It is made by a :class:`Script`,
which every start method can carry to the core's process. That imports this module, so that it
imports no pytest: for a core that is spawned this would be most of its start.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sample_engine.batch.outputs import CoreOutput
from sample_engine.batch.request import FinishReason
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import EngineConfig, WorkerMethod
from sample_engine.errors import ConfigError, PromptError
from sample_engine.parallel.place import RankPlace
from sample_engine.process.client import CoreClient, ProcessClient
from sample_engine.process.start_method import StartDecision

PROJECT = Path(__file__).resolve().parents[3]
METHODS = [WorkerMethod.FORK, WorkerMethod.SPAWN, WorkerMethod.FORKSERVER]
MOST_PROMPT = 1_000_000
HANG_SECONDS = 120.0
"""How long to wait for what must come: for hangs only, so that no busy machine is one."""


@dataclasses.dataclass(frozen=True)
class Script:
    """What a core does. ``at_start`` and ``at_step`` are names of ``EVENTS``.

    ``at_step`` happens in one step, the one of ``step_number``, or in each if that is 0. Of several
    ranks, ``on_rank`` is the one on which they happen. ``errors`` has, by token, the type of the
    error with which a request ends in place of it.
    """

    at_start: str = ""
    at_step: str = ""
    step_number: int = 3
    step_seconds: float = 0.0
    tokens_per_step: int = 1
    max_model_len: int = 1 << 40
    on_rank: int = 0
    errors: tuple[tuple[int, str], ...] = ()

    def __call__(self, config: EngineConfig, place: RankPlace | None = None) -> ScriptedCore:
        """Make the core, or that of a rank."""
        rank = 0 if place is None else place.rank
        here = self if rank == self.on_rank else dataclasses.replace(self, at_start="", at_step="")
        if here.at_start:
            EVENTS[here.at_start]()
        return ScriptedCore(here)


class ScriptedCore:
    """A core that repeats prompts."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._requests: dict[str, tuple[Sequence[int], SamplingParams, int]] = {}
        self._steps = self._steps_off = 0
        self.aborted: list[str] = []
        self.was_shut_down = False

    def add_request(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        """Take a request, unless it is empty or too long."""
        if not prompt_token_ids:
            raise PromptError(f"Request {request_id!r} has an empty prompt.")
        if len(prompt_token_ids) > MOST_PROMPT:
            raise PromptError(f"Request {request_id!r} has a prompt that is too long.")
        self._requests[request_id] = (list(prompt_token_ids), params, 0)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests."""
        for request_id in request_ids:
            self.aborted.append(request_id)
            self._requests.pop(request_id, None)

    def step(self) -> list[CoreOutput]:
        """Say some more tokens of each request."""
        self._steps += 1
        if self._script.at_step == "differ":
            self._steps_off = 1
        elif self._script.at_step and self._script.step_number in (0, self._steps):
            EVENTS[self._script.at_step]()
        time.sleep(self._script.step_seconds)
        return [self._advance(request_id) for request_id in list(self._requests)]

    def _advance(self, request_id: str) -> CoreOutput:
        prompt, params, done = self._requests[request_id]
        most = self._script.max_model_len if params.max_tokens is None else params.max_tokens
        count = min(self._script.tokens_per_step, most - done)
        tokens = tuple(prompt[at % len(prompt)] for at in range(done, done + count))
        self._requests[request_id] = (prompt, params, done + count)
        for at, token in enumerate(tokens):
            error_type = dict(self._script.errors).get(token)
            if error_type is not None:
                del self._requests[request_id]
                words = f"Request {request_id!r} met {chr(token)!r}."
                ended = CoreOutput(request_id, tokens[:at], FinishReason.ERROR, error=words)
                return dataclasses.replace(ended, error_type=error_type)
        if done + count < most:
            return CoreOutput(request_id, tokens)
        del self._requests[request_id]
        return CoreOutput(request_id, tokens, FinishReason.LENGTH)

    def step_digest(self) -> int:
        """What the last step came to: its number, unless this rank's differ."""
        return self._steps + self._steps_off

    def has_unfinished(self) -> bool:
        """Whether there is a request."""
        return bool(self._requests)

    def metrics(self) -> dict[str, Any]:
        """What it counted."""
        return {
            "steps": self._steps,
            "aborted": self.aborted,
            "unfinished": list(self._requests),
            "by_position": {0: 1, 1: 2},
        }

    def info(self) -> dict[str, Any]:
        """What it is."""
        return {
            "model": "scripted",
            "max_model_len": self._script.max_model_len,
            "vocab_size": 257,
            "threads": threading.active_count(),
        }

    def shutdown(self) -> None:
        """Note that it was asked to."""
        self.was_shut_down = True


def _config_error() -> NoReturn:
    raise ConfigError("num_blocks=1 must be a whole number of at least 2.")


def _error() -> NoReturn:
    raise ZeroDivisionError("nothing is left to divide by")


def _exit() -> NoReturn:
    sys.stderr.write("the cache file is corrupt\n")
    os._exit(3)


def _kill() -> None:
    sys.stderr.write("now it comes\n")
    os.kill(os.getpid(), signal.SIGKILL)


def _crash() -> None:
    ctypes.string_at(0)


def _sleep() -> None:
    time.sleep(600)


EVENTS: dict[str, Callable[[], None]] = {
    "config error": _config_error,
    "error": _error,
    "exit": _exit,
    "kill": _kill,
    "crash": _crash,
    "sleep": _sleep,
}


class Milestone:
    """What a forked core comes to, and the test waits for."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()

    def reach(self) -> None:
        """Say that it is there: what the core calls."""
        os.write(self._writing, b"!")

    def wait(self) -> None:
        """Wait for it; fails the test if it does not come."""
        if not select.select([self._reading], [], [], HANG_SECONDS)[0]:
            raise AssertionError(f"the core has not come there in {HANG_SECONDS:.0f} s")

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self._reading)
        os.close(self._writing)


def start(
    method: WorkerMethod,
    script: Script | None = None,
    start_seconds: float = HANG_SECONDS,
    ranks: int = 1,
) -> ProcessClient:
    """Start a process with a scripted core, or one for each rank."""
    decision = StartDecision(method, ("a test asks for it",), method)
    config = EngineConfig(tensor_parallel_size=ranks)
    return ProcessClient(config, script or Script(), decision, start_seconds)


def collect(
    client: CoreClient, count: int = 1, seconds: float = HANG_SECONDS
) -> dict[str, list[CoreOutput]]:
    """Take outputs until so many requests have finished."""
    found: dict[str, list[CoreOutput]] = {}
    finished = 0
    deadline = time.monotonic() + seconds
    while finished < count:
        assert time.monotonic() < deadline, f"{finished} of {count} requests finished: {found}"
        for output in client.get_outputs(1.0):
            found.setdefault(output.request_id, []).append(output)
            finished += output.finish_reason is not None
    return found


def take_for_ever(client: CoreClient, found: list[CoreOutput] | None = None) -> NoReturn:
    """Take outputs, into ``found`` if it is given, until an error ends it."""
    while True:
        outputs = client.get_outputs(HANG_SECONDS)
        assert outputs, f"neither outputs nor an error came in {HANG_SECONDS:.0f} s"
        if found is not None:
            found += outputs


def tokens_of(outputs: list[CoreOutput]) -> list[int]:
    """All tokens of a request."""
    return [token for output in outputs for token in output.new_token_ids]


def is_running(pid: int) -> bool:
    """Whether a process is there and not only waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something; fails the test with ``what`` did not happen if it does not come."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not so after {HANG_SECONDS:.0f} s"
        time.sleep(0.01)


def wait_until_gone(pid: int) -> None:
    """Wait for the end of a process; fails the test if it does not come."""
    wait_until(lambda: not is_running(pid), f"process {pid} has ended")


def wait_until_stopped(pid: int) -> None:
    """Wait until a signal has stopped a process."""
    stat = Path(f"/proc/{pid}/stat")
    wait_until(
        lambda: stat.read_bytes().rpartition(b")")[2].split()[0] == b"T",
        f"process {pid} is stopped",
    )


def children() -> set[int]:
    """Processes below this one, but for those that are kept until the end.

    These are two of multiprocessing, and the servers of interpreters.
    """
    # here, as a core that is spawned has no use for it
    from tests.support import interpreter_servers

    kept = {server.pid for server in interpreter_servers.servers().running()}
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
            with open(f"/proc/{name}/cmdline", "rb") as file:
                command = file.read()
        except OSError:
            continue
        own = b"multiprocessing.resource_tracker" in command or (
            b"multiprocessing.forkserver" in command and parent == os.getpid()
        )
        if parent == os.getpid() and not own and int(name) not in kept:
            found.add(int(name))
    return found


@contextlib.contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Check that what is done meanwhile leaves no process and no descriptor."""
    processes, files = children(), descriptors()
    yield
    left_running = children() - processes  # what an earlier test has left may end meanwhile
    assert not left_running, left_running
    left = {fd: what for fd, what in descriptors().items() if fd not in files}
    # What multiprocessing opens once, for its resource tracker and its fork server.
    left = {fd: what for fd, what in left.items() if not what.startswith(("pipe:", "/dev/urandom"))}
    assert not left, left


def descriptors() -> dict[int, str]:
    """The open descriptors of this process and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor of the listing itself
    return found
