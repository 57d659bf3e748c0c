"""Names that programs written for vLLM use and this engine does not know.

Such a name is taken as long as its value asks for nothing, so that a program runs as it stands.
Any other value is refused by name: it would silently not be what was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sample_engine.errors import ConfigError

__all__ = ["ENGINE", "SAMPLING", "engine_settings", "take_out"]

SAMPLING: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "allowed_token_ids": (None,),
        "bad_words": (None, []),
        "best_of": (None, 1),
        "detokenize": (True,),
        "extra_args": (None,),
        "flat_logprobs": (False,),
        "frequency_penalty": (0.0,),
        "guided_decoding": (None,),
        "include_stop_str_in_output": (False,),
        "logit_bias": (None, {}),
        "logits_processors": (None, []),
        "min_p": (0.0,),
        "min_tokens": (0,),
        "presence_penalty": (0.0,),
        "prompt_logprobs": (None,),
        "repetition_penalty": (1.0,),
        "skip_reading_prefix_cache": (None, False),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "structured_outputs": (None,),
        "thinking_token_budget": (None, -1),
        "truncate_prompt_tokens": (None,),
    }
)
"""Parameters of a request, each with the values that ask for nothing; the first is vLLM's own."""

ENGINE: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "cpu_offload_gb": (0,),
        "data_parallel_size": (1,),
        "disable_log_stats": (True, False),
        "distributed_executor_backend": (None, "mp"),
        "enable_expert_parallel": (False,),
        "enable_lora": (False,),
        "hf_overrides": (None, {}),
        "limit_mm_per_prompt": (None, {}),
        "pipeline_parallel_size": (1,),
        "quantization": (None,),
        "revision": (None,),
        "runner": ("auto", "generate"),
        "skip_tokenizer_init": (False,),
        "swap_space": (4, 0),
        "task": ("auto", "generate"),
        "tokenizer": (None,),
        "tokenizer_mode": ("auto",),
        "tokenizer_revision": (None,),
        "trust_remote_code": (False,),
    }
)
"""Settings of an engine, likewise."""


def engine_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an engine that are this engine's own.

    ``enforce_eager=True`` is what ``cudagraph_mode="NONE"`` says, the default. Raises
    :class:`ConfigError` for what only vLLM can do, all of it in one message.
    """
    left, wrong = take_out(settings, ENGINE)
    eager = left.pop("enforce_eager", None)
    mode = left.get("cudagraph_mode", "NONE")
    if eager is not None and not isinstance(eager, bool):
        wrong.append(f"enforce_eager={eager!r} must be True or False.")
    elif eager and mode != "NONE":
        wrong.append(
            f"enforce_eager=True and cudagraph_mode={mode!r} contradict each other: drop one."
        )
    if wrong:
        raise ConfigError("\n".join(wrong))
    return left


def take_out(
    settings: Mapping[str, Any], names: Mapping[str, tuple[object, ...]]
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings without those names, and what of them asks for something, a line each."""
    left, wrong = dict(settings), []
    for name in names.keys() & left.keys():
        value, nothing = left.pop(name), names[name]
        if not any(_is_same(value, one) for one in nothing):
            wrong.append(
                f"{name}={value!r} is not supported by this engine: leave it out, or at "
                f"{nothing[0]!r}."
            )
    return left, sorted(wrong)


def _is_same(value: object, one: object) -> bool:
    """Whether two values are equal, where 1 is 1.0 and True is no number."""
    alike = type(value) is type(one) or (_is_number(value) and _is_number(one))
    return alike and value == one


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
