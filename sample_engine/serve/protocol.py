"""What a client of OpenAI's interface may ask for, and what of it this engine does.

Fields that the engine has no meaning for are accepted where they ask for nothing, and refused by
name where they ask for something: a text that silently obeys half of a request is a wrong answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetPydanticSchema, StrictBool, StrictFloat, StrictInt

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.vllm_names import SAMPLING
from sample_engine.errors import PromptError
from sample_engine.tokenizers.messages import text_of_parts

_Each = TypeVar("_Each")
# The first wrong element ends the reading: errors of the millions that a body holds take gigabytes.
# pydantic's own FailFast has no hash, which unions need.
_FAIL_FAST = GetPydanticSchema(lambda kind, handler: {**handler(kind), "fail_fast": True})
List = Annotated[list[_Each], _FAIL_FAST]
Tokens = List[StrictInt]
_NOTHING: Mapping[str, tuple[Any, ...]] = {
    **{name: (None, *nothing) for name, nothing in SAMPLING.items()},
    "echo": (None, False),
    "suffix": (None, ""),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "reasoning_effort": (None, "none"),
    "store": (None, False),
    "service_tier": (None, "auto", "default"),
}
"""Fields that are known and not done, each with the values that ask for nothing."""
_NOTHING_IN_STREAMS: Mapping[str, tuple[Any, ...]] = {
    "continuous_usage_stats": (None, False),
    "include_obfuscation": (None, False),
}
"""Those of ``stream_options``."""
_HARMLESS = ("user", "metadata", "safety_identifier", "prompt_cache_key")
"""Fields that ask for nothing whatever they hold."""


class UnsupportedFieldError(PromptError):
    """A field that asks for what this engine does not do. Recoverable; ``param`` names it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message, param=param)


class StreamOptions(BaseModel):
    """What a stream is to hold beside the text."""

    model_config = ConfigDict(extra="allow")
    include_usage: StrictBool = False


class _Request(BaseModel):
    """What both kinds of requests have; the defaults are OpenAI's."""

    model_config = ConfigDict(extra="allow")
    model: str
    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    top_k: StrictInt | None = None
    n: StrictInt | None = None
    seed: StrictInt | None = None
    stop: str | List[str] | None = None
    stop_token_ids: Tokens | None = None
    ignore_eos: StrictBool = False
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None

    def field_of(self, error: PromptError) -> str:
        """Return the field of this request that an error is about."""
        raise NotImplementedError

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with what it has cost."""
        return self.stream_options is not None and self.stream_options.include_usage

    def params(self) -> SamplingParams:
        """Return what the engine is asked for.

        Raises:
            PromptError: a value is out of range, or a field asks for what is not done.

        """
        for name, given in (self.model_extra or {}).items():
            _check_extra(name, given)
        if self.stream_options is not None:
            for name, given in (self.stream_options.model_extra or {}).items():
                _check_stream_option(name, given)
        max_tokens, logprobs = self._limits()
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=0 if self.top_k is None else self.top_k,
            n=1 if self.n is None else self.n,
            seed=self.seed,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            max_tokens=max_tokens,
            logprobs=logprobs,
        )

    def _limits(self) -> tuple[int | None, int | None]:
        """The most tokens, and how many log probabilities beside each token's own."""
        raise NotImplementedError


class CompletionRequest(_Request):
    """The body of ``POST /v1/completions``."""

    prompt: str | Tokens | List[str] | List[Tokens]
    max_tokens: StrictInt | None = 16
    logprobs: StrictInt | None = None

    def field_of(self, error: PromptError) -> str:
        """Return the field of this request that an error is about."""
        return error.param or "prompt"

    def prompts(self) -> list[str | Mapping[str, Any]]:
        """Return the prompts as the engine takes them; a list of tokens is one prompt."""
        given: list[Any] = [self.prompt] if isinstance(self.prompt, str) else list(self.prompt)
        if given and all(isinstance(each, int) for each in given):
            given = [given]
        if not given:
            raise UnsupportedFieldError("prompt", "prompt is empty: give a text, or tokens.")
        return [each if isinstance(each, str) else {"prompt_token_ids": each} for each in given]

    def _limits(self) -> tuple[int | None, int | None]:
        return self.max_tokens, self.logprobs


class Message(BaseModel):
    """One message of a conversation. ``name``: of who speaks, which templates may write."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: str | List[dict[str, Any]] | None = None
    name: str | None = None

    def for_template(self) -> Mapping[str, Any]:
        """Return it as the engine takes it.

        Raises:
            UnsupportedFieldError: it says something beside its text, which no model would see.

        """
        _refuse_more(self.model_extra or {})
        named = {} if self.name is None else {"name": self.name}
        return {"role": self.role, "content": self._text(), **named}

    def _text(self) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        try:
            return text_of_parts(self.content)
        except PromptError as error:
            raise UnsupportedFieldError("messages", str(error)) from None


class ChatRequest(_Request):
    """The body of ``POST /v1/chat/completions``."""

    messages: List[Message]
    max_tokens: StrictInt | None = None
    max_completion_tokens: StrictInt | None = None
    logprobs: StrictBool | None = None
    top_logprobs: StrictInt | None = None

    def field_of(self, error: PromptError) -> str:
        """Return the field of this request that an error is about."""
        if error.param == "logprobs":
            return "top_logprobs"
        if error.param == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        return error.param or "messages"

    def conversation(self) -> list[Mapping[str, Any]]:
        """Return the messages as the engine takes them.

        Raises:
            UnsupportedFieldError: There are none, or one says something beside its text.

        """
        if not self.messages:
            raise UnsupportedFieldError("messages", "messages is empty: give at least one.")
        return [message.for_template() for message in self.messages]

    def _limits(self) -> tuple[int | None, int | None]:
        if self.top_logprobs and not self.logprobs:
            raise UnsupportedFieldError("top_logprobs", "top_logprobs needs logprobs=true.")
        most = self.max_completion_tokens
        return (
            self.max_tokens if most is None else most,
            (self.top_logprobs or 0) if self.logprobs else None,
        )


def _check_extra(name: str, given: object) -> None:
    """Check a field that no class above has."""
    if name in _HARMLESS:
        return
    if name not in _NOTHING:
        raise UnsupportedFieldError(name, f"{name!r} is no field that this server knows.")
    if not any(given == each for each in _NOTHING[name]):
        raise UnsupportedFieldError(
            name, f"{name}={given!r} is not supported by this engine: leave it out."
        )


def _refuse_more(fields: Mapping[str, Any]) -> None:
    """Refuse what a message says beside its text; what is empty says nothing."""
    for name, given in fields.items():
        if given:
            raise UnsupportedFieldError(
                "messages",
                f"A message has {name!r}, which this engine does not give to models: leave it out, "
                "or say it in the text.",
            )


def _check_stream_option(name: str, given: object) -> None:
    if not any(given == each for each in _NOTHING_IN_STREAMS.get(name, ())):
        raise UnsupportedFieldError(
            "stream_options",
            f"stream_options has {name}={given!r}, which this engine does not do: leave it out.",
        )
