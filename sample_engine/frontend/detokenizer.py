"""From tokens to what a caller reads: characters that are whole, text that stops in time.

Tokens of one request go in as the core makes them, and its text comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from sample_engine.batch.outputs import (
    CompletionOutput,
    CoreOutput,
    Logprob,
    RequestOutput,
    TokenLogprobs,
)
from sample_engine.batch.request import FinishReason
from sample_engine.batch.sampling_params import SamplingParams

__all__ = ["Decoder", "New", "RequestText", "StopText", "Tokenizer"]


class Decoder(Protocol):
    """Makes text of a stream of tokens, never a part of a character."""

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete."""

    def finish(self) -> str:
        """What is left at the end."""


class Tokenizer(Protocol):
    """Makes text of tokens, all at once or as they come."""

    def token_text(self, token: int) -> str:
        """The text of one token among others."""

    def token_bytes(self, token: int) -> bytes:
        """Its bytes, which may be a part of a character."""

    def incremental_decoder(self, prompt_token_ids: Sequence[int] = ()) -> Decoder:
        """A decoder for the tokens that follow a prompt."""


class New(NamedTuple):
    """What is new of a completion."""

    text: str
    token_ids: Sequence[int]
    logprobs: tuple[dict[int, Logprob], ...] | None = None


class StopText:
    """A stream of text that ends before the first stop string.

    What may be the beginning of a stop string is held back until it is known.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.found: str | None = None  # the stop string that ended it

    def feed(self, text: str) -> str:
        """Take new text; return what is certain now."""
        self._held += text
        found = [(at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            at, self.found = min(found, key=lambda one: one[0])
            certain = self._held[:at]
            self._held = ""
            return certain
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        certain = self._held[: len(self._held) - keep]
        self._held = self._held[len(certain) :]
        return certain

    def finish(self) -> str:
        """Return what was held back: no stop string has come of it."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` with which ``stop`` begins, and is not complete."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class RequestText:
    """The tokens and text of one completion, as they come. ``index``: of those of its prompt."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: Sequence[int],
        tokenizer: Tokenizer,
        params: SamplingParams,
        index: int = 0,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.index = index
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self.error_type: str | None = None
        self._prompt_token_ids = tuple(prompt_token_ids)
        self._tokenizer = tokenizer
        self._decoder = tokenizer.incremental_decoder(self._prompt_token_ids)
        self._params = params
        self._stop = StopText(params.stop)
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[dict[int, Logprob]] | None = None
        if params.logprobs is not None:
            self._logprobs = []
        self._num_cached_tokens = 0
        self._num_preemptions = 0

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None

    @property
    def num_tokens(self) -> int:
        """Tokens that were generated."""
        return len(self._token_ids)

    def add(self, output: CoreOutput) -> New:
        """Take what the core says; return what is new for the caller.

        The token that completes a stop string is the last one, whatever came with it: how many
        tokens come at once does not show. A token that ends the text by itself is none of the text.
        """
        token_ids: Sequence[int] = output.new_token_ids
        ended_by_token = output.finish_reason is FinishReason.STOP
        text, read = self._read(token_ids[:-1] if ended_by_token else token_ids)
        stopped = self._stop.found is not None
        if stopped:
            token_ids = read
        if output.finish_reason is not None and not stopped:
            text += self._stop.feed(self._decoder.finish()) + self._stop.finish()
            stopped = self._stop.found is not None
        if stopped:  # what became of tokens after its end is nothing to it, an error included
            self.finish_reason = FinishReason.STOP
        else:
            self.finish_reason = output.finish_reason
            self.error, self.error_type = output.error, output.error_type
        self._num_cached_tokens = output.num_cached_tokens
        self._num_preemptions = output.num_preemptions
        self._token_ids += token_ids
        self._text.append(text)
        logprobs = None
        if self._logprobs is not None:
            logprobs = tuple(map(self._by_token, output.logprobs[: len(token_ids)]))
            self._logprobs += logprobs
        return New(text, token_ids, logprobs)

    def _read(self, token_ids: Sequence[int]) -> tuple[str, Sequence[int]]:
        """The certain text of the next tokens, and those of them that are before its end."""
        if not self._params.stop:
            return self._decoder.decode(token_ids), token_ids
        text = ""
        for number, token in enumerate(token_ids):
            text += self._stop.feed(self._decoder.decode((token,)))
            if self._stop.found is not None:
                return text, token_ids[: number + 1]
        return text, token_ids

    def _by_token(self, line: TokenLogprobs) -> dict[int, Logprob]:
        """How likely tokens of one place were; the generated one comes first."""
        ranks = (line.rank, *range(1, len(line.token_ids)))
        found: dict[int, Logprob] = {}
        for token, logprob, rank in zip(line.token_ids, line.logprobs, ranks, strict=True):
            if token not in found:
                text, data = self._tokenizer.token_text(token), self._tokenizer.token_bytes(token)
                found[token] = Logprob(logprob, rank, text, data)
        return found

    def chunk(self, new: New) -> RequestOutput:
        """An output with what is new: what :meth:`add` has returned."""
        return self._output(new)

    def whole(self) -> RequestOutput:
        """All of it so far."""
        logprobs = None if self._logprobs is None else tuple(self._logprobs)
        return self._output(New("".join(self._text), self._token_ids, logprobs))

    def _output(self, new: New) -> RequestOutput:
        token_ids, cumulative = tuple(new.token_ids), None
        if new.logprobs is not None:
            pairs = zip(new.logprobs, token_ids, strict=True)
            cumulative = sum(line[token].logprob for line, token in pairs)
        completion = CompletionOutput(
            index=self.index,
            text=new.text,
            token_ids=token_ids,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason() if self.finished else None,
            logprobs=new.logprobs,
            cumulative_logprob=cumulative,
            error=self.error,
            error_type=self.error_type,
        )
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=(completion,),
            num_cached_tokens=self._num_cached_tokens,
            num_preemptions=self._num_preemptions,
        )

    def _stop_reason(self) -> str | int | None:
        """The stop string or the stop token at the end; None: it ended otherwise."""
        if self._stop.found is not None:
            return self._stop.found
        last = self._token_ids[-1] if self._token_ids else None
        if self.finish_reason is FinishReason.STOP and last in self._params.stop_token_ids:
            return last
        return None
