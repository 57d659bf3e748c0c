"""``python -m sample_engine serve``: its arguments, its socket, its end."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from sample_engine.errors import EngineError
from sample_engine.frontend.engine_options import add_engine_options, engine_settings
from sample_engine.process.standard_streams import replace_closed_streams

_STOPPED, _FAILED, _WRONG_INPUT = 0, 1, 2
_INTERRUPTED = 128 + signal.SIGINT
_LAST_SECONDS = 3
"""How long requests may go on when the server is told to stop; what is left is told why it ends."""


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or Ctrl-C, or until the engine is gone.

    The first line on stdout is the address, written when requests are taken.

    Returns:
        130 after Ctrl-C; SIGTERM ends the process. 1: the engine failed, at its start or later. 2:
        wrong input, a port that is taken, or a library that is missing.

    """
    replace_closed_streams("stdout")  # a daemon's: uvicorn asks whether it is a terminal
    options = _parser().parse_args(arguments)
    try:
        import uvicorn

        from sample_engine.serve.app import Service, create_app
        from sample_engine.serve.ending import EndingServer
        from sample_engine.serve.streams import Streams
    except ImportError as error:
        return _complain(f"{error}: pip install fastapi uvicorn", _WRONG_INPUT)
    try:
        if options.port:  # a port that is taken is told before a model is loaded
            _listen(options).close()
        # The socket is opened after the engine: a forked core would keep it open.
        llm = _engine(options)
    except OSError as error:
        return _complain(_in_words(options, error), _WRONG_INPUT)
    except ValueError as error:  # ConfigError is one
        return _complain(str(error), _WRONG_INPUT)
    except EngineError as error:
        return _complain(str(error), _FAILED)
    streams = Streams(llm, at_once=options.max_num_seqs, waiting=options.max_waiting)
    try:
        listening = _listen(options)
    except OSError as error:
        streams.close()
        return _complain(_in_words(options, error), _WRONG_INPUT)
    with listening:
        host, port = listening.getsockname()[:2]
        name = options.served_model_name or options.model
        service = Service(streams, name, on_dead=lambda: setattr(server, "should_exit", True))
        config = uvicorn.Config(create_app(service), log_level="warning")
        server = EndingServer(config, streams, _LAST_SECONDS)
        try:
            sys.stdout.write(f"http://{f'[{host}]' if ':' in host else host}:{port}\n")
            sys.stdout.flush()
        except OSError as error:
            streams.close()
            return _complain(f"the address cannot be written to stdout: {error}", _FAILED)
        try:
            server.run(sockets=[listening])
        except KeyboardInterrupt:  # it is passed on when all is tidied up, as SIGTERM is
            return _INTERRUPTED
    if streams.dead is not None:
        return _complain(f"the engine is gone: {streams.dead}", _FAILED)
    return _STOPPED


def _engine(options: argparse.Namespace) -> Any:
    from sample_engine.llm import LLM

    return LLM(options.model, **engine_settings(options, "max_model_len", "max_num_seqs"))


def _listen(options: argparse.Namespace) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    return socket.create_server((options.host, options.port), family=family)


def _in_words(options: argparse.Namespace, error: OSError) -> str:
    where = f"port {options.port} of {options.host}"
    return f"{where} cannot be had: {os.strerror(error.errno) if error.errno else error}"


def _complain(text: str, status: int) -> int:
    sys.stderr.write(f"sample_engine: error: {text}\n")
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say it in one line, as all other errors."""
        self.exit(_WRONG_INPUT, f"sample_engine: error: {message}; see serve --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m sample_engine serve",
        description="Serve a model over HTTP as OpenAI does: /v1/completions, "
        "/v1/chat/completions, /v1/models, /health.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine alone")
    add("--port", type=_port, default=8000, help="default: 8000; 0: any that is free")
    add("--served-model-name", type=_name, metavar="NAME", help="by which clients ask for it")
    add("--max-waiting", type=_count, default=256, metavar="N",
        help="completions that may wait beside those that are computed; beyond, 503")  # fmt: skip
    add("--max-num-seqs", type=_count, default=64, metavar="N", help="completions at the same time")
    add("--max-model-len", type=_count, metavar="N", help="the longest text, in tokens")
    add_engine_options(parser)
    return parser


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to 65535")
    return int(text)


def _name(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} has no UTF-8, and each answer has this name in it"
        ) from None
    return text


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)
