"""Sends requests to a server that is watched: none may be lost, and no thread may be ours.

A small HTTP server of one thread runs alone, under ``python -m pytest_cudafork run``, and started
with ``PYTEST_CUDA_FORK_RUN``. Each gets so many requests a second for so many seconds, at times
that were fixed beforehand: who is late sends at once, and the rate that was reached stands in the
record. The server says how many threads it has, as the kernel counts them, at its beginning and at
its end.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arguments import above_zero
from results_file import parser, publish, table

SERVER = """\
import http.server, json, os
answered = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global answered
        answered += 1
        text = json.dumps({"answered": answered, "threads": len(os.listdir("/proc/self/task"))})
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *words):
        pass
http.server.HTTPServer.request_queue_size = 128
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
KINDS = ("alone", "run", "variable")
CLIENTS = 4
HANG_SECONDS = 120


@contextlib.contextmanager
def serving(kind: str, folder: str) -> Iterator[int]:
    """Start the server in one of the ways, and yield its port; its report is waited for."""
    program, report = Path(folder, "server.py"), Path(folder, f"{kind}.txt")
    program.write_text(SERVER, encoding="utf-8")
    command, env = [sys.executable, str(program)], dict(os.environ)
    if kind == "run":
        command[1:1] = ["-m", "pytest_cudafork", "run", "--report", str(report)]
    if kind == "variable":
        env["PYTEST_CUDA_FORK_RUN"] = str(report)
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.send_signal(signal.SIGTERM)
    until = time.monotonic() + HANG_SECONDS
    while kind != "alone" and "no touch of CUDA was seen" not in _text(report):
        assert time.monotonic() < until, f"no report of the server: {_text(report)!r}"
        time.sleep(0.05)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def ask(port: int) -> Any:
    """Send one request; return the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert answer.status == 200, answer.status
        return json.loads(answer.read())


def load(port: int, rate: float, seconds: float) -> dict[str, float]:
    """Send the requests; return what became of them."""
    times = iter([number / rate for number in range(int(rate * seconds))])
    lock, waits, lost = threading.Lock(), [], []
    start = time.monotonic()

    def client() -> None:
        while True:
            with lock:
                due = next(times, None)
            if due is None:
                return
            time.sleep(max(0.0, start + due - time.monotonic()))
            sent = time.monotonic()
            try:
                ask(port)
                waits.append(time.monotonic() - sent)
            except (OSError, http.client.HTTPException, AssertionError, ValueError) as error:
                lost.append(repr(error))

    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    took = time.monotonic() - start
    waits.sort()
    middle, most = (waits[len(waits) // 2], waits[-1]) if waits else (0.0, 0.0)
    sent = len(waits) + len(lost)
    return {
        "sent": sent,
        "lost": len(lost),
        "rate": sent / took,
        "median_ms": middle * 1e3,
        "longest_ms": most * 1e3,
    }


def main() -> None:
    """Measure, print, keep the results if that is asked for; fail where something is lost."""
    arguments = parser("A watched server under requests.", rounds=1)
    arguments.add_argument("--rate", type=above_zero, default=100, help="Requests a second.")
    arguments.add_argument("--seconds", type=above_zero, default=60, help="For how long.")
    options = arguments.parse_args()
    rows, data = [], []
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            with serving(kind, folder) as port:
                first = ask(port)
                found = load(port, options.rate, options.seconds)
                last = ask(port)
            found["answered"] = last["answered"] - first["answered"] - 1
            found["threads"] = max(first["threads"], last["threads"])
            data.append({"kind": kind, **found})
            rows.append([kind, *(f"{found[key]:.0f}" for key in COLUMNS)])
    shown = table(["the server", *COLUMNS.values()], rows) + (
        f"\n\nasked for: {options.rate:g} requests a second for {options.seconds:g} s "
        f"by {CLIENTS} clients"
    )
    publish("served", "A watched server under requests", shown,
            {"rate": options.rate, "seconds": options.seconds, "rows": data},
            save=options.save)  # fmt: skip
    alone = data[0]
    for row in data:
        assert row["lost"] == 0, row
        assert row["answered"] == row["sent"], row
        assert row["threads"] == alone["threads"], row


COLUMNS = {
    "sent": "sent",
    "answered": "answered",
    "lost": "lost",
    "rate": "a second",
    "median_ms": "median, ms",
    "longest_ms": "longest, ms",
    "threads": "threads",
}

if __name__ == "__main__":
    main()
