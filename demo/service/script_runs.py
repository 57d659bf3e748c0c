"""Runs the script of a request: bounded in time and output, ended when nobody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from pytest_cudafork import isolated_env

MOST_BYTES = 1 << 20
"""How much a script may answer."""
_TAIL = 2000
_CHUNK = 1 << 16
_END_SECONDS = 5.0
_STDERR_SECONDS = 1.0


@dataclass(frozen=True)
class ScriptSettings:
    """What is run for a request.

    Attributes:
        script: The script; it reads the text from its input and writes its answer.
        start_method: The method by which it is to start its engine.
        limit: Seconds that it may take.
        at_once: How many scripts may run at the same time; further requests wait.

    """

    script: Path
    start_method: str = "spawn"
    limit: float = 120.0
    at_once: int = 2


class ScriptFailedError(Exception):
    """The script gave no answer; ``stderr`` is the end of what it wrote."""

    def __init__(self, message: str, stderr: str = "") -> None:
        super().__init__(message)
        self.stderr = stderr


class ScriptTooSlowError(ScriptFailedError):
    """Its time was up, and it was ended."""


class ScriptRuns:
    """Runs scripts, some at a time."""

    def __init__(self, settings: ScriptSettings) -> None:
        self.settings = settings
        self.running: set[int] = set()
        """The processes that run now; each leads a process group of its own."""
        self._free = asyncio.Semaphore(settings.at_once)

    async def answer(self, text: str) -> bytes:
        """Run the script on a text and return what it writes.

        When the call is cancelled, the script is ended with all that is in its process group.

        Raises:
            ScriptFailedError: It exits with another status than 0, or writes too much.
            ScriptTooSlowError: It does not end in time.

        """
        async with self._free:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(self.settings.script),
                f"--start-method={self.settings.start_method}",
                env=dict(isolated_env(method=self.settings.start_method)),  # uvloop takes no other
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            self.running.add(process.pid)
            try:
                return await self._talk(process, text)
            finally:
                await asyncio.shield(self._end(process))

    def close(self) -> None:
        """End all scripts that run: the service stops, and waits for nobody any more."""
        for pid in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    async def _talk(self, process: asyncio.subprocess.Process, text: str) -> bytes:
        assert process.stderr is not None, "it is a pipe"
        limit = self.settings.limit
        errors = asyncio.create_task(_tail_of(process.stderr))
        try:
            answer = await asyncio.wait_for(_exchange(process, text.encode()), limit)
            if process.returncode != 0:
                with contextlib.suppress(asyncio.TimeoutError):  # a descendant holds its end open
                    await asyncio.wait_for(asyncio.shield(errors), _STDERR_SECONDS)
                words = exit_words(process.returncode)
                raise ScriptFailedError(words, errors.result() if errors.done() else "")
            return answer
        except asyncio.TimeoutError:
            raise ScriptTooSlowError(f"it did not end within {limit:g} s") from None
        finally:
            errors.cancel()

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """End what is left of a script, its descendants in the group too, and reap it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        self.running.discard(process.pid)


def exit_words(status: int | None) -> str:
    """Say how a script ended."""
    if status is not None and status < 0:
        return f"it was killed by {signal.Signals(-status).name}"
    return f"it ended with status {status}"


async def _exchange(process: asyncio.subprocess.Process, text: bytes) -> bytes:
    """Give a script its text, and take its answer and its end."""
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    with contextlib.suppress(ConnectionError):  # it has not read all, or has ended
        process.stdin.write(text)
        await process.stdin.drain()
        process.stdin.close()
    answer = await _all_of(process.stdout)
    await process.wait()
    return answer


async def _all_of(stream: asyncio.StreamReader) -> bytes:
    """Read to the end.

    Raises:
        ScriptFailedError: That is more than an answer may have.

    """
    data = bytearray()
    while chunk := await stream.read(_CHUNK):
        data += chunk
        if len(data) > MOST_BYTES:
            raise ScriptFailedError(f"it wrote more than {MOST_BYTES} bytes")
    return bytes(data)


async def _tail_of(stream: asyncio.StreamReader) -> str:
    """Read to the end and return the last of it."""
    tail = b""
    while chunk := await stream.read(_CHUNK):
        tail = (tail + chunk)[-_TAIL:]
    return tail.decode("utf-8", "backslashreplace")
