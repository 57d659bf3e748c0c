"""The command line: ``python -m sample_engine "def quick_sort("`` completes a text.

Here are its arguments, what goes to stdout and stderr, and the exit codes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.errors import ConfigError, EngineError, PromptError
from sample_engine.frontend.engine_options import add_engine_options, engine_settings
from sample_engine.process.standard_streams import replace_closed_streams

__all__ = ["main"]

_WRONG_INPUT = 2
_FAILED = 1
_INTERRUPTED = 128 + signal.SIGINT
_TRACEBACK_ENV = "SAMPLE_ENGINE_TRACEBACK"
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Complete a prompt. Exit codes: 0, 1 the engine failed, 2 wrong input, 130 Ctrl-C."""
    replace_closed_streams("stderr")
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] == "serve":  # the text "serve" is completed after --
        from sample_engine.serve.command_line import main as serve

        return serve(given[1:])
    options = _parser().parse_args(given)
    try:
        return _complete(options)
    except (ConfigError, PromptError) as error:
        _complain(error)
        return _WRONG_INPUT
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read stdout has seen enough. Python flushes it once more at exit: let it succeed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        _complain(error)
        return _FAILED


def _complete(options: argparse.Namespace) -> int:
    """Write the prompt and what the model makes of it, as it comes."""
    from sample_engine.llm import LLM

    params = SamplingParams(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        stop=tuple(options.stop),
    )
    if sys.stdout is None:
        raise ConfigError("stdout is closed: there is nowhere to write the text to.")
    prompt = _prompt(options.prompt)
    with LLM(options.model, **engine_settings(options)) as llm:
        began = time.monotonic()
        output = None
        tokens = 0
        try:
            for output in llm.generate_stream(prompt, params):
                _write((prompt if not tokens else "") + output.text)
                tokens += len(output.token_ids)
        finally:
            if output is not None:  # errors begin on a line of their own
                with contextlib.suppress(BrokenPipeError):
                    _write("\n")
        if options.speculative_config is not None:
            _show_speculation(llm.metrics())
        if options.metrics:
            _show_metrics(tokens, time.monotonic() - began, llm)
    if output is not None and output.error is not None:
        raise EngineError(output.error)
    return 0


def _prompt(text: str) -> str:
    if text != "-":
        return text
    if sys.stdin is None:
        raise PromptError("The prompt is to be read from stdin, which is closed.")
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"The prompt on stdin is not UTF-8 at byte {error.start}: convert it, for instance "
            "with iconv."
        ) from None


def _show_metrics(tokens: int, seconds: float, llm: Any) -> None:
    """A line for each number, on stderr: stdout is the text."""
    speed = f"{tokens / seconds:.1f} tokens/s" if seconds > 0 else ""
    lines = [f"{tokens} tokens in {seconds:.2f} s, {speed}"]
    lines += [f"{name}: {value}" for name, value in {**llm.info(), **llm.metrics()}.items()]
    sys.stderr.write("\n".join(lines) + "\n")


def _show_speculation(metrics: dict[str, Any]) -> None:
    """Say on stderr what speculation came to."""
    if "tokens_per_step" not in metrics:
        return  # a core of somebody's own may count other things
    pairs = zip(metrics["accepted_per_position"], metrics["drafted_per_position"], strict=True)
    accepted = ", ".join(f"{right} of {drafted}" for right, drafted in pairs)
    words = f"drafts accepted, by position: {accepted}" if accepted else "no drafts were made"
    sys.stderr.write(f"{metrics['tokens_per_step']:.2f} tokens per step; {words}\n")


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:  # a terminal without UTF-8, which has not even U+FFFD
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def _complain(error: Exception) -> None:
    """Say what is wrong, a line for each thing; all that is known only if that is asked for."""
    text, *more = str(error).split("\n") if str(error) else [""]
    if not isinstance(error, EngineError):
        text = f"{type(error).__name__}: {text}"
        more.append("")
    if _TRACEBACK_ENV in os.environ:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    elif isinstance(error, ConfigError):
        text = "\nsample_engine: error: ".join([text, *more])
    elif more:
        text += f" ({_TRACEBACK_ENV}=1 shows more)"
    sys.stderr.write(f"sample_engine: error: {text}\n")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say it in one line, as all other errors."""
        self.exit(_WRONG_INPUT, f"sample_engine: error: {message}; see --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m sample_engine",
        description="Complete a text with the engine's own model. `serve` as the first argument "
        "starts a server instead.",
    )
    add = parser.add_argument
    add("prompt", help="the text to go on with; - reads it from stdin")
    add("--max-tokens", type=int, default=256, metavar="N", help="default: 256")
    add("--temperature", type=float, default=0.0, metavar="T", help="0, the default, is greedy")
    add("--top-k", type=int, default=0, metavar="N", help="0, the default: all tokens")
    add("--top-p", type=float, default=1.0, metavar="P", help="default: 1.0")
    add("--seed", type=int, metavar="N", help="of the sampling; the same gives the same text")
    add(
        "--stop",
        type=_unescaped,
        action="append",
        default=[],
        metavar="TEXT",
        help=r"end before this text; may be given again; \n: line end, \t: tab, \\: backslash",
    )
    add_engine_options(parser)
    add("--metrics", action="store_true", help="show what the engine did, on stderr")
    return parser


def _unescaped(text: str) -> str:
    r"""Return a text with its ``\n``, ``\t`` and ``\\`` replaced; other backslashes stay."""
    parts = iter(text)
    found = []
    for character in parts:
        if character == "\\":
            following = next(parts, "")
            character = _ESCAPES.get(following, character + following)
        found.append(character)
    return "".join(found)


if __name__ == "__main__":
    sys.exit(main())
