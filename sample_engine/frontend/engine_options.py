"""The options of the command line that are settings of the engine: one list for all commands."""

from __future__ import annotations

import argparse
import json
import reprlib
from typing import Any

from sample_engine.config import CUDAGraphMode, WorkerMethod

__all__ = ["add_engine_options", "engine_settings"]

_NAMES = (
    "device",
    "dtype",
    "kv_cache_dtype",
    "load_format",
    "attention_backend",
    "worker_method",
    "speculative_config",
    "kv_transfer_config",
    "cudagraph_mode",
    "async_scheduling",
    "tensor_parallel_size",
)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--model`` and an option for each setting that commands have."""
    add = parser.add_argument
    add(
        "--model",
        default="tiny",
        help="tiny, a folder with weights, or llama-3-8b with --load-format dummy (default: tiny)",
    )
    add("--device", help="auto, cpu, cuda, cuda:1")
    add("--dtype", help="auto, float32, float16, bfloat16")
    add("--kv-cache-dtype", metavar="DTYPE", help="auto, or fp8: keys and values in 8 bits")
    add("--load-format", help="auto, or dummy for random weights")
    add("--attention-backend", metavar="NAME", help="auto, or a backend's name")
    add(
        "--worker-method",
        metavar="METHOD",
        help=f"how the core is started: {', '.join(method.value for method in WorkerMethod)}",
    )
    add(
        "--speculative-config",
        type=_json_object,
        metavar="JSON",
        help="guess tokens ahead, with the method 'eagle' or 'ngram': "
        '{"method": "eagle", "num_speculative_tokens": 3}',
    )
    add(
        "--kv-transfer-config",
        type=_json_object,
        metavar="JSON",
        help="share KV blocks with other engines: "
        '{"kv_connector": "SharedMemoryConnector", "kv_role": "kv_both"}',
    )
    add(
        "--cudagraph-mode",
        metavar="MODE",
        help=f"on a GPU: {', '.join(mode.value for mode in CUDAGraphMode)} (default: NONE)",
    )
    add(
        "--async-scheduling",
        action="store_const",
        const=True,
        help="schedule a step while the device is at work on the one before",
    )
    add(
        "--tensor-parallel-size",
        type=int,
        metavar="N",
        help="spread the model over so many processes, with a GPU each (default: 1)",
    )


def engine_settings(options: argparse.Namespace, *more: str) -> dict[str, Any]:
    """The settings that were given, ``more`` of a command's own too; others keep their defaults."""
    given = {name: getattr(options, name) for name in (*_NAMES, *more)}
    return {name: value for name, value in given.items() if value is not None}


def _short(text: str) -> str:
    shown = reprlib.Repr()
    shown.maxstring = 80
    return shown.repr(text)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else error
        raise argparse.ArgumentTypeError(f"{_short(text)} is not JSON ({reason})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{_short(text)} is not a JSON object")
    return value
