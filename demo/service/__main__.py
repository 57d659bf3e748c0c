"""Runs the service on a free port of the loopback: ``python -m demo.service``.

The first line that it prints is its address.
"""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import uvicorn

from demo.service.app import create_app
from demo.service.script_runs import ScriptSettings

POST = Path(__file__).with_name("post.py")
_STOP_SECONDS = 3
"""How long requests may go on when the service is told to stop; then their scripts are ended."""


def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m demo.service")
    parser.add_argument("--script", type=Path, default=POST)
    parser.add_argument("--start-method", default="spawn", choices=("fork", "forkserver", "spawn"))
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one script")
    parser.add_argument("--at-once", type=int, default=2, help="scripts at the same time")
    options = parser.parse_args()
    settings = ScriptSettings(options.script, options.start_method, options.limit, options.at_once)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        print(f"http://{host}:{port}", flush=True)
        config = uvicorn.Config(
            create_app(settings), log_level="warning", timeout_graceful_shutdown=_STOP_SECONDS
        )
        uvicorn.Server(config).run(sockets=[server])


if __name__ == "__main__":
    main()
