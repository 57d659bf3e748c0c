"""The front end: prompts in, text out.

In which process the core runs is the client's business (``process.client``). Nothing here imports
torch: the core does, in its own process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sample_engine.batch.outputs import CoreOutput, RequestOutput
from sample_engine.batch.request import SamplingParams
from sample_engine.config import EngineConfig
from sample_engine.device.preflight import check_before_start
from sample_engine.errors import EngineDeadError, PromptError, RemoteError
from sample_engine.frontend.detokenizer import RequestText
from sample_engine.frontend.progress import progress_bar
from sample_engine.process.client import make_client
from sample_engine.process.core_process import CoreFactory, make_engine_core, refusal
from sample_engine.tokenizers.byte_tokenizer import ByteTokenizer

__all__ = ["LLM"]

_logger = logging.getLogger(__name__)

# How long one wait for outputs lasts, so that other threads get their turn. A dead core ends it.
_WAIT_SECONDS = 0.5

Params = SamplingParams | Sequence[SamplingParams] | None


class _Batch(NamedTuple):
    """The arguments of a call, checked. ``single``: one prompt was given by itself."""

    prompts: list[str]
    params: list[SamplingParams]
    single: bool


class _Live:
    """A request that is under way. ``chunks`` are those of a stream that nobody has taken yet."""

    def __init__(self, text: RequestText, *, streams: bool) -> None:
        self.text = text
        self.chunks: deque[RequestOutput] | None = deque() if streams else None

    def add(self, output: CoreOutput) -> None:
        """Take what the core says of it."""
        new = self.text.add(output)
        if self.chunks is not None:
            self.chunks.append(self.text.chunk(*new))


class LLM:
    """A language model that completes text.

    Keyword arguments are those of :class:`EngineConfig`. The core runs in a process of its own
    unless ``worker_method="inproc"``; it ends with :meth:`shutdown`, with the ``with`` block, when
    the object is collected, and with the program.

    Raises :class:`ConfigError` for settings that no engine can be made of, :class:`WeightsError`,
    and :class:`RemoteError` or :class:`EngineDeadError` where the core fails to start.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "tiny",
        *,
        core_factory: CoreFactory = make_engine_core,
        **settings: Any,
    ) -> None:
        self.config = EngineConfig.of(model=model, **settings)
        self._owner = os.getpid()
        self._tokenizer = ByteTokenizer()
        if core_factory is make_engine_core:  # another core may want another machine
            check_before_start(self.config)
        self._client = make_client(self.config, core_factory)
        self._live: dict[str, _Live] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._to_abort: deque[str] = deque()
        self._finalizer = weakref.finalize(self, self._client.shutdown)

    def generate(
        self,
        prompts: str | Sequence[str],
        sampling_params: Params = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts; the outputs are in their order.

        A prompt that is refused raises :class:`PromptError` if it was given by itself. In a list
        its output has ``finish_reason`` ``ERROR`` and says why in ``error``, and the others finish.

        Args:
            prompts: one, or several.
            sampling_params: for all, or one for each prompt; None: greedy.
            use_tqdm: whether to show a progress bar on stderr; None: if that is a terminal and it
                takes longer than a second.

        """
        batch = _checked(prompts, sampling_params)
        requests: list[_Live] = []
        try:
            self._submit(requests, batch, streams=False)
            with progress_bar(len(batch.prompts), use_tqdm) as tell:
                while True:
                    running = sum(not request.text.finished for request in requests)
                    tokens = sum(request.text.num_tokens for request in requests)
                    tell(len(requests) - running, tokens)
                    if not running:
                        break
                    self._pump()
        except (EngineDeadError, RemoteError) as error:
            error.outputs = _finished(requests)
            raise
        finally:
            self._drop(requests)
        _tell_errors(requests, batch)
        return [request.text.whole() for request in requests]

    def generate_stream(
        self, prompts: str | Sequence[str], sampling_params: Params = None
    ) -> Iterator[RequestOutput]:
        """Complete prompts; outputs hold what is new and come as soon as they are there.

        The texts of a request's outputs, joined, are what :meth:`generate` returns for it. Several
        prompts' outputs come in turns; ``request_id`` and ``prompt`` tell them apart. Closing the
        iterator ends what it has not brought yet.
        """
        return self._stream(_checked(prompts, sampling_params))

    def metrics(self) -> dict[str, Any]:
        """What the engine did so far, in numbers."""
        with self._in_turn():
            return self._client.metrics()

    def info(self) -> dict[str, Any]:
        """What the settings came to: model, device, backend, sizes, how the core was started."""
        return dict(self._client.info)

    def shutdown(self) -> None:
        """End the core and its process, from any thread; twice does no harm.

        Calls of other threads that are under way raise :class:`EngineDeadError`.
        """
        self._finalizer()

    def __enter__(self) -> LLM:
        """Return the engine. Raises :class:`EngineDeadError` if it is gone already."""
        self._client.check()
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    def _stream(self, batch: _Batch) -> Iterator[RequestOutput]:
        requests: list[_Live] = []
        try:
            self._submit(requests, batch, streams=True)
            while True:
                left = False
                for request in requests:
                    while request.chunks:
                        chunk = request.chunks.popleft()
                        if chunk.error is not None:
                            _tell_errors([request], batch)
                        yield chunk
                    left = left or not request.text.finished
                if left:
                    self._pump()
                elif not any(request.chunks for request in requests):
                    return
        except (EngineDeadError, RemoteError) as error:
            error.outputs = _finished(requests)
            raise
        finally:
            self._drop(requests)

    def _submit(self, requests: list[_Live], batch: _Batch, *, streams: bool) -> None:
        """Make requests of prompts and send them; appends to ``requests`` one by one."""
        with self._in_turn():
            for prompt, params in zip(batch.prompts, batch.params, strict=True):
                request_id = str(self._count)
                self._count += 1
                error: PromptError | None = None
                token_ids: list[int] = []
                try:
                    token_ids = self._tokenizer.encode(prompt)
                except PromptError as wrong:
                    error = wrong
                decoder = self._tokenizer.incremental_decoder()
                text = RequestText(request_id, prompt, len(token_ids), decoder, params.stop)
                request = _Live(text, streams=streams)
                requests.append(request)
                if error is None:
                    self._live[request_id] = request
                    try:
                        self._client.add_request(request_id, token_ids, params)
                    except PromptError as wrong:
                        error = wrong
                if error is not None:
                    self._live.pop(request_id, None)
                    request.add(refusal(request_id, error))

    def _pump(self) -> None:
        """Wait for outputs and hand them to the requests that they belong to, whoever asked."""
        with self._in_turn():
            for output in self._client.get_outputs(_WAIT_SECONDS):
                request = self._live.get(output.request_id)
                if request is None:  # nobody wants it any more
                    continue
                request.add(output)
                if request.text.finished:
                    del self._live[output.request_id]
                    if output.finish_reason is None:  # a stop string: the core does not know of it
                        self._to_abort.append(output.request_id)

    def _drop(self, requests: list[_Live]) -> None:
        """Abort those that have not finished.

        An iterator may be collected at any moment, in the middle of another call too: then it is
        that call which tells the core.
        """
        for request in requests:
            if self._live.pop(request.text.request_id, None) is not None:
                self._to_abort.append(request.text.request_id)
        if self._to_abort and self._lock.acquire(blocking=False):
            try:
                self._tell_aborts()
            finally:
                self._lock.release()

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        """One thread at a time talks to the core."""
        if os.getpid() != self._owner:
            self._client.check()  # before the lock: a forked child may have inherited it taken
        with self._lock:
            yield
            self._tell_aborts()

    def _tell_aborts(self) -> None:
        request_ids = []
        while self._to_abort:
            request_ids.append(self._to_abort.popleft())
        if request_ids:
            self._client.abort(request_ids)


def _finished(requests: list[_Live]) -> tuple[RequestOutput, ...]:
    return tuple(request.text.whole() for request in requests if request.text.finished)


def _tell_errors(requests: list[_Live], batch: _Batch) -> None:
    """The refusal of a single prompt is raised; other errors are in the outputs, and logged."""
    wrong = [request.text for request in requests if request.text.error is not None]
    if not wrong:
        return
    if batch.single and not wrong[0].num_tokens:
        raise PromptError(wrong[0].error)
    _logger.warning(
        "%d of %d prompts ended with an error, which their outputs hold; the first is: %s",
        len(wrong),
        len(batch.prompts),
        wrong[0].error,
    )


def _checked(prompts: str | Sequence[str], sampling_params: Params) -> _Batch:
    """Check the arguments before anything is computed."""
    texts = _texts(prompts)
    each = _each(sampling_params, len(texts))
    return _Batch(texts, each, isinstance(prompts, str))


def _texts(prompts: object) -> list[str]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable) or isinstance(prompts, (bytes, bytearray, Mapping)):
        raise TypeError(
            f"prompts={prompts!r} is of the type {type(prompts).__name__}: give a str, or a list "
            "of str."
        )
    texts = list(prompts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"Prompt {number} is {text!r}: prompts are str, or a list of str.")
    return texts


def _each(sampling_params: object, count: int) -> list[SamplingParams]:
    """The parameters of each of so many prompts."""
    if sampling_params is None:
        sampling_params = SamplingParams()
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * count
    wanted = "it is a SamplingParams, or a list with one for each prompt."
    if not isinstance(sampling_params, Iterable) or isinstance(
        sampling_params, (str, bytes, bytearray, Mapping)
    ):
        is_mapping = isinstance(sampling_params, Mapping)
        hint = " SamplingParams(**values) makes one of a mapping." if is_mapping else ""
        raise TypeError(
            f"sampling_params={sampling_params!r} is of the type {type(sampling_params).__name__}: "
            f"{wanted}{hint}"
        )
    each = list(sampling_params)
    for params in each:
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params holds {params!r}: {wanted}")
    if len(each) != count:
        raise PromptError(
            f"There are {count} prompts and {len(each)} sampling_params: give one for all, or "
            "one for each prompt."
        )
    return each
