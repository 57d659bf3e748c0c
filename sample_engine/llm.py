"""The front end: prompts in, text out.

In which process the core runs is the client's business (``process.client``). Nothing here imports
torch: the core does, in its own process.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sample_engine.batch.outputs import CoreOutput, RequestOutput, error_of_request, joined
from sample_engine.batch.request_limits import too_long, vocabulary_tokens
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.vllm_names import engine_settings
from sample_engine.config import EngineConfig
from sample_engine.device.preflight import (
    check_before_start,
    check_graph_execution,
    check_graphs_without_gpu,
)
from sample_engine.errors import EngineDeadError, PromptError, RemoteError
from sample_engine.frontend.detokenizer import RequestText
from sample_engine.frontend.progress import progress_bar
from sample_engine.frontend.prompts import (
    Batch,
    Message,
    Params,
    Prompt,
    PromptParts,
    checked,
    conversations,
)
from sample_engine.frontend.turns import Turns
from sample_engine.process.client import make_client
from sample_engine.process.core_process import CoreFactory, make_engine_core, refusal
from sample_engine.process.interrupts import interrupts_deferred
from sample_engine.tokenizers.choice import BYTES, text_of_model

if TYPE_CHECKING:
    from sample_engine.graphs.execution import GraphExecution

__all__ = ["LLM"]

_Result = TypeVar("_Result")

_logger = logging.getLogger(__name__)

# How long one wait for outputs lasts, so that other threads get their turn. A dead core ends it.
_WAIT_SECONDS = 0.5


class _Tokens(NamedTuple):
    """A prompt of which tokens are made, or why that cannot be."""

    request_id: str
    token_ids: list[int]
    error: PromptError | None


class _Tally:
    """How far a call has come: it may have so many completions that nobody wants to ask each."""

    def __init__(self) -> None:
        self.running = 0
        self.num_tokens = 0
        self.num_outputs = 0


class _Live:
    """A completion that is under way. ``chunks`` are those of a stream that nobody has taken yet.

    ``core_id`` is what the core calls it: the completions of a prompt have one request id.
    """

    def __init__(self, core_id: str, text: RequestText, tally: _Tally, *, streams: bool) -> None:
        self.core_id = core_id
        self.text = text
        self.chunks: deque[RequestOutput] | None = deque() if streams else None
        self._tally = tally
        tally.running += 1

    def add(self, output: CoreOutput) -> None:
        """Take what the core says of it."""
        new = self.text.add(output)
        self._tally.num_tokens += len(new.token_ids)
        self._tally.running -= self.text.finished
        if self.chunks is not None:
            self.chunks.append(self.text.chunk(new))
        self._tally.num_outputs += 1  # last: who waits for it finds all of the above


class LLM:
    """A language model that completes text.

    Keyword arguments are those of :class:`EngineConfig`, and names of vLLM that have no meaning
    here, as long as they ask for nothing (``batch.vllm_names``). The core runs in a process of its
    own unless ``worker_method="inproc"``; it ends with :meth:`shutdown`, with the ``with`` block,
    when the object is collected, and with the program.

    ``graph_execution`` captures and replays in place of CUDA graphs, on a machine without a GPU,
    too: an object with the methods of ``graphs.execution.GraphExecution``.

    Raises :class:`ConfigError` for settings that no engine can be made of, :class:`WeightsError`,
    and :class:`RemoteError` or :class:`EngineDeadError` where the core fails to start.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "tiny",
        *,
        core_factory: CoreFactory = make_engine_core,
        graph_execution: GraphExecution | None = None,
        **settings: Any,
    ) -> None:
        self.config = EngineConfig.of(model=model, **engine_settings(settings))
        self._owner = os.getpid()
        self._text = BYTES
        if core_factory is make_engine_core:  # another core may want another machine, and model
            check_before_start(self.config)
            self._text = text_of_model(self.config)
            if graph_execution is not None:
                check_graph_execution(self.config, graph_execution)
                core_factory = partial(make_engine_core, graph_execution=graph_execution)
            elif self.config.device == "cpu":
                check_graphs_without_gpu(self.config)
        elif graph_execution is not None:
            raise TypeError("graph_execution is for the engine's own core, not for core_factory.")
        self._tokenizer = self._text.tokenizer
        self._client = make_client(self.config, core_factory)
        self._live: dict[str, _Live] = {}
        self._ids = itertools.count()  # threads may ask for the next one at once
        self._turns = Turns()
        self._to_abort: deque[str] = deque()
        self._finalizer = weakref.finalize(self, self._client.shutdown)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts; the outputs are in their order.

        A prompt that is refused raises :class:`PromptError` if it was given by itself, and one
        that ends before its first token for another reason that reason's error. In a list
        its output has ``finish_reason`` ``ERROR`` and says why in ``error``, and the others finish.

        Args:
            prompts: one, or several. A prompt is a text, or as in vLLM a mapping that has its text
                as ``prompt`` or its tokens as ``prompt_token_ids``.
            sampling_params: for all, or one for each prompt; None: greedy.
            use_tqdm: whether to show a progress bar on stderr; None: if that is a terminal and it
                takes longer than a second.

        """
        batch = checked(prompts, sampling_params)
        requests: list[_Live] = []
        tally = _Tally()
        try:
            self._submit(requests, batch, tally, streams=False)
            with progress_bar(len(batch.prompts), use_tqdm) as tell:
                while True:
                    seen, running = tally.num_outputs, tally.running
                    tell(len(requests) - running, tally.num_tokens)
                    if not running:
                        break
                    self._pump(tally, seen)
        except (EngineDeadError, RemoteError) as error:
            error.outputs = _finished(requests)
            raise
        finally:
            self._drop(requests)
        _tell_errors(requests, batch)
        return _outputs(requests)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several. A message is ``{"role": "user", "content": "..."}``.

        The model's chat template makes a prompt of it; without one each message is a line. Raises
        :class:`PromptError` for a conversation that the template refuses.
        """
        each, several = conversations(messages)
        prompts = [self.chat_prompt(conversation) for conversation in each]
        return self.generate(prompts if several else prompts[0], sampling_params, use_tqdm=use_tqdm)

    def chat_prompt(self, messages: Sequence[Message]) -> Prompt:
        """The prompt that :meth:`chat` makes of a conversation, its text and its tokens."""
        text, token_ids = self._text.conversation(messages)
        return {"prompt": text, "prompt_token_ids": token_ids}

    def generate_stream(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None
    ) -> Iterator[RequestOutput]:
        """Complete prompts; outputs hold what is new and come as soon as they are there.

        The texts of a completion's outputs, joined, are what :meth:`generate` returns for it.
        Several prompts' outputs come in turns, and so do a prompt's completions; ``request_id`` and
        ``outputs[0].index`` tell them apart. Closing the iterator ends what it has not brought yet.
        """
        return self._stream(checked(prompts, sampling_params))

    def metrics(self) -> dict[str, Any]:
        """What the engine did so far, in numbers."""
        return self._in_turn(self._client.metrics)

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

    def _stream(self, batch: Batch) -> Iterator[RequestOutput]:
        requests: list[_Live] = []
        tally = _Tally()
        try:
            self._submit(requests, batch, tally, streams=True)
            while True:
                seen, left = tally.num_outputs, False
                for request in requests:
                    while request.chunks:
                        chunk = request.chunks.popleft()
                        if chunk.error is not None:
                            _tell_errors([request], batch)
                        yield chunk
                    left = left or not request.text.finished
                if left:
                    self._pump(tally, seen)
                elif not any(request.chunks for request in requests):
                    return
        except (EngineDeadError, RemoteError) as error:
            error.outputs = _finished(requests)
            raise
        finally:
            self._drop(requests)

    def _submit(self, requests: list[_Live], batch: Batch, tally: _Tally, *, streams: bool) -> None:
        """Make requests of prompts and send them; appends to ``requests`` one by one.

        A long text is encoded for seconds: that is not done in turn, so that others go on.
        """
        tokens = [self._tokens_of(str(next(self._ids)), prompt) for prompt in batch.prompts]
        self._in_turn(lambda: self._send_all(requests, batch, tokens, tally, streams=streams))

    def _tokens_of(self, request_id: str, prompt: PromptParts) -> _Tokens:
        try:
            return _Tokens(request_id, self._encoded(request_id, prompt), None)
        except PromptError as error:
            return _Tokens(request_id, [], error)

    def _send_all(
        self,
        requests: list[_Live],
        batch: Batch,
        tokens: list[_Tokens],
        tally: _Tally,
        *,
        streams: bool,
    ) -> None:
        each = zip(batch.prompts, batch.params, tokens, strict=True)
        for prompt, params, (request_id, token_ids, error) in each:
            for index in range(params.n):
                own = params.of_completion(index)
                text = RequestText(request_id, prompt.text, token_ids, self._tokenizer, own, index)
                core_id = f"{request_id}.{index}" if params.n > 1 else request_id
                request = _Live(core_id, text, tally, streams=streams)
                requests.append(request)
                self._send(request, token_ids, own, error)

    def _encoded(self, request_id: str, prompt: PromptParts) -> list[int]:
        """The tokens of a prompt. What the model cannot take is refused before it travels."""
        most = self._client.info.get("max_model_len", sys.maxsize)
        if prompt.token_ids is not None:
            if len(prompt.token_ids) >= most:
                raise PromptError(too_long(request_id, str(len(prompt.token_ids)), most))
            size = self._client.info.get("vocab_size", sys.maxsize)
            return vocabulary_tokens(request_id, prompt.token_ids, size)
        at_least = self._tokenizer.fewest_tokens(prompt.text or "")
        if at_least >= most:
            raise PromptError(too_long(request_id, f"at least {at_least}", most))
        token_ids = self._tokenizer.encode(prompt.text or "")
        if len(token_ids) >= most:
            raise PromptError(too_long(request_id, str(len(token_ids)), most))
        return token_ids

    def _send(
        self,
        request: _Live,
        token_ids: list[int],
        params: SamplingParams,
        error: PromptError | None,
    ) -> None:
        if error is None:
            self._live[request.core_id] = request
            try:
                self._client.add_request(request.core_id, token_ids, params)
            except PromptError as wrong:
                error = wrong
        if error is not None:
            self._live.pop(request.core_id, None)
            request.add(refusal(request.core_id, error))

    def _pump(self, tally: _Tally, seen: int) -> None:
        """Wait until a call has more outputs than it has seen, whichever call reads them."""

        def has_come() -> bool:
            return tally.num_outputs != seen

        def take_outputs() -> None:
            if not has_come():  # on the way to the lock
                self._take_outputs()

        self._turns.wait(has_come, lambda: self._in_turn(take_outputs))

    def _take_outputs(self) -> None:
        """Wait for outputs and hand them to the requests that they belong to, whoever asked."""
        self._client.wait_for_outputs(_WAIT_SECONDS)
        # Ctrl-C ends this call; what belongs to those of other threads must reach them.
        with interrupts_deferred():
            for output in self._client.get_outputs(0.0):
                self._hand_out(output)

    def _hand_out(self, output: CoreOutput) -> None:
        request = self._live.get(output.request_id)
        if request is None:  # nobody wants it any more
            return
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
        with interrupts_deferred():
            for request in requests:
                if self._live.pop(request.core_id, None) is not None:
                    self._to_abort.append(request.core_id)
        self._tell_aborts_unless_busy()

    def _in_turn(self, call: Callable[[], _Result]) -> _Result:
        """Let one thread at a time talk to the core."""

        def call_and_tell() -> _Result:
            self._tell_aborts()  # of a call that Ctrl-C has ended before it told of them
            result = call()
            self._tell_aborts()
            return result

        if os.getpid() != self._owner:
            self._client.check()  # before the lock: a forked child may have inherited it taken
        result = self._turns.take(call_and_tell)
        self._tell_aborts_unless_busy()  # of those who found the lock taken since
        return result

    def _tell_aborts_unless_busy(self) -> None:
        """Tell the core, or leave it to the call that has the lock: it looks again at its end."""
        if not self._to_abort:
            return
        with interrupts_deferred():  # between two of these lines the lock would stay taken
            while self._to_abort and self._turns.lock.acquire(blocking=False):
                try:
                    self._tell_aborts()
                finally:
                    self._turns.lock.release()

    def _tell_aborts(self) -> None:
        if not self._to_abort:
            return
        with interrupts_deferred():
            request_ids = []
            while self._to_abort:
                request_ids.append(self._to_abort.popleft())
            self._client.abort(request_ids)


def _outputs(requests: list[_Live]) -> list[RequestOutput]:
    """What became of the prompts, each with all its completions."""
    of_prompt: dict[str, list[RequestOutput]] = {}
    for request in requests:
        of_prompt.setdefault(request.text.request_id, []).append(request.text.whole())
    return [joined(parts) for parts in of_prompt.values()]


def _finished(requests: list[_Live]) -> tuple[RequestOutput, ...]:
    return tuple(output for output in _outputs(requests) if output.finished)


def _tell_errors(requests: list[_Live], batch: Batch) -> None:
    """What a single prompt ended with at once is raised; else it is in its output, and logged."""
    wrong = [request.text for request in requests if request.text.error is not None]
    if not wrong:
        return
    if batch.single and not wrong[0].num_tokens:
        raise error_of_request(wrong[0].error_type, wrong[0].error)
    _logger.warning(
        "%d of %d prompts ended with an error, which their outputs hold; the first is: %s",
        len({text.request_id for text in wrong}),
        len(batch.prompts),
        wrong[0].error,
    )
