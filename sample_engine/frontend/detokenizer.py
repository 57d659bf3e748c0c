"""From tokens to what a caller reads: characters that are whole, text that stops in time.

Tokens of one request go in as the core makes them, and its text comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from sample_engine.batch.outputs import CoreOutput, RequestOutput
from sample_engine.batch.request import FinishReason

__all__ = ["Decoder", "RequestText", "StopText"]


class Decoder(Protocol):
    """Makes text of a stream of tokens, never a part of a character."""

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete."""

    def finish(self) -> str:
        """What is left at the end."""


class StopText:
    """A stream of text that ends before the first stop string.

    What may be the beginning of a stop string is held back until it is known.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Take new text; return what is certain now."""
        self._held += text
        found = [at for at in map(self._held.find, self._stop) if at >= 0]
        if found:
            self.stopped = True
            certain = self._held[: min(found)]
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
    """One request's tokens and text, as they come."""

    def __init__(
        self,
        request_id: str,
        prompt: str,
        num_prompt_tokens: int,
        decoder: Decoder,
        stop: Sequence[str],
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.finish_reason: FinishReason | None = None
        self._num_prompt_tokens = num_prompt_tokens
        self._decoder = decoder
        self._stop = StopText(stop)
        self._looks_for_stop = bool(stop)
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self.error: str | None = None
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

    def add(self, output: CoreOutput) -> tuple[str, Sequence[int]]:
        """Take what the core says; return the text and the tokens that are new for the caller.

        The token that completes a stop string is the last one, whatever came with it: how many
        tokens come at once does not show.
        """
        text, token_ids = self._read(output.new_token_ids)
        if output.finish_reason is not None and not self._stop.stopped:
            text += self._stop.feed(self._decoder.finish()) + self._stop.finish()
        self.finish_reason = FinishReason.STOP if self._stop.stopped else output.finish_reason
        self.error = output.error
        self._num_cached_tokens = output.num_cached_tokens
        self._num_preemptions = output.num_preemptions
        self._token_ids += token_ids
        self._text.append(text)
        return text, token_ids

    def _read(self, token_ids: Sequence[int]) -> tuple[str, Sequence[int]]:
        """The certain text of the next tokens, and those of them that are before its end."""
        if not self._looks_for_stop:
            return self._decoder.decode(token_ids), token_ids
        text = ""
        for number, token in enumerate(token_ids):
            text += self._stop.feed(self._decoder.decode((token,)))
            if self._stop.stopped:
                return text, token_ids[: number + 1]
        return text, token_ids

    def chunk(self, text: str, token_ids: Sequence[int]) -> RequestOutput:
        """An output with what is new: what :meth:`add` has returned."""
        return self._output(text, token_ids)

    def whole(self) -> RequestOutput:
        """All of it so far."""
        return self._output("".join(self._text), self._token_ids)

    def _output(self, text: str, token_ids: Sequence[int]) -> RequestOutput:
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            text=text,
            token_ids=tuple(token_ids),
            finish_reason=self.finish_reason,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens,
            num_preemptions=self._num_preemptions,
            error=self.error,
        )
