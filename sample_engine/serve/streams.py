"""Between the server's event loop and the engine, whose streams are read in threads.

A stream is ended where nobody reads it any more: the engine then forgets its request.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sample_engine.batch.outputs import RequestOutput, error_of_request
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.errors import EngineDeadError, EngineError, PromptError, RemoteError
from sample_engine.llm import LLM

Prompt = str | Mapping[str, Any]
_STOPPED = "the server is being stopped: ask again, another one or later"
Item = tuple[int, RequestOutput]
"""The place of a prompt in its request, and what is new of one of its completions."""


class OverloadedError(Exception):
    """There are as many requests as may wait. Recoverable: later."""


class StoppedError(Exception):
    """The server has been told to stop. Recoverable: by another server."""


class Streams:
    """The streams of an engine.

    Attributes:
        llm: The engine.
        dead: Why the engine is gone; None while it works.

    """

    def __init__(self, llm: LLM, *, at_once: int, waiting: int) -> None:
        """Read so many prompts' streams at the same time; so many completions more may wait."""
        self.llm = llm
        self.dead: Exception | None = None
        self._most = at_once + waiting
        self._count = 0
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="stream")
        self._closing = threading.Event()
        self._stopped = False
        self._reading: set[asyncio.Queue[Item | Exception | None]] = set()

    @property
    def count(self) -> int:
        """How many completions are under way or wait, of all prompts."""
        return self._count

    async def read(
        self, prompts: Sequence[Prompt], params: SamplingParams
    ) -> AsyncGenerator[Item, None]:
        """Complete prompts; give what is new of any of them, as it comes.

        Raises:
            PromptError: A prompt is refused; the others are ended. Or more completions are asked
                for than may ever be under way.
            NotFiniteError, KVTransferError: One ended for want of numbers or of shared blocks, for
                which no client is to blame; likewise.
            OverloadedError: Too many wait already.
            EngineDeadError, RemoteError: The engine is gone, and so is the server's use.
            StoppedError: The server was told to stop, and does not wait any longer.

        """
        if self._stopped:
            raise StoppedError(_STOPPED)
        asked = len(prompts) * params.n
        if asked > self._most:
            raise PromptError(
                f"{asked} completions are asked for, and this server takes at most {self._most} at "
                "a time: send several requests.",
                param="n" if len(prompts) <= self._most else "",
            )
        if self._count + asked > self._most:
            raise OverloadedError(
                f"{self._count} completions are under way or wait; try again later"
            )
        loop = asyncio.get_running_loop()
        brought: asyncio.Queue[Item | Exception | None] = asyncio.Queue()
        gone = threading.Event()

        def bring(item: Item | Exception | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(brought.put_nowait, item)

        self._count += asked
        jobs = [
            loop.run_in_executor(self._pool, self._complete, place, prompt, params, bring, gone)
            for place, prompt in enumerate(prompts)
        ]
        self._reading.add(brought)
        try:
            left = len(jobs)
            while left:
                item = await brought.get()
                if item is None:
                    left -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield item
        finally:
            gone.set()
            self._reading.discard(brought)
            self._count -= asked
            for job in jobs:
                job.cancel()  # one that waits for its turn; the others see that nobody reads

    def _complete(
        self, place: int, prompt: Prompt, params: SamplingParams, bring: Any, gone: threading.Event
    ) -> None:
        """Read one prompt's stream, in a thread."""
        try:
            stream: Any = self.llm.generate_stream(prompt, params)  # a generator, which is closed
            with contextlib.closing(stream):
                for output in stream:
                    if output.error is not None:
                        raise error_of_request(output.error_type, output.error)
                    if gone.is_set() or self._closing.is_set():
                        break
                    bring((place, output))
        except (EngineDeadError, RemoteError) as error:
            self._note(error)
            bring(error)
        except Exception as error:
            bring(error)
        except BaseException as error:  # a panic of a library in Rust is one; it is no end
            bring(RuntimeError(f"{type(error).__name__}: {error}"))
            raise
        finally:
            bring(None)

    def look(self) -> None:
        """Ask an engine of which a process has died, to learn why it is gone; in a thread."""
        try:
            self.llm.metrics()
        except EngineError as error:  # also that its last message cannot be read
            self._note(error)

    def _note(self, error: Exception) -> None:
        """Keep why the engine is gone: the first error says most."""
        if self.dead is None:
            self.dead = error

    def stop(self) -> None:
        """End what is under way by an error that says why; for the loop's thread."""
        self._stopped = True
        for brought in self._reading:
            brought.put_nowait(StoppedError(_STOPPED))

    def close(self) -> None:
        """End all streams and the engine."""
        self._closing.set()
        self.llm.shutdown()
        self._pool.shutdown(wait=True, cancel_futures=True)
