"""Two engines that share KV blocks: one computes a long prompt, the other fetches what it computed.

With ``--start-method=fork`` this is the script of the report: it asks torch for a GPU, for its log,
and then forks both engines. With ``spawn`` or ``forkserver`` it is repaired.

    python demo/kv_sharing.py --start-method=spawn
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("fork", "forkserver", "spawn")
PROMPT = "\n".join(f"def area_{sides}(length: float) -> float:" for sides in range(3, 12))
_TOKENS = 8


def report_cuda() -> str:
    """For the log: whether this process could use a GPU."""
    import torch

    return "available" if torch.cuda.is_available() else "not available"


def run_engine(name: str, role: str, connection: Connection) -> None:
    """Complete the prompt, tell what that took, and keep the blocks until a word is said."""
    sys.path.insert(0, str(ROOT))  # the engine runs from the checkout
    from sample_engine import LLM, KVTransferConfig, SamplingParams

    config = KVTransferConfig(
        kv_connector="SharedMemoryConnector",
        kv_role=role,
        kv_connector_extra_config={"name": name},
    )
    with LLM(worker_method="inproc", max_model_len=1024, kv_transfer_config=config) as engine:
        params = SamplingParams(max_tokens=_TOKENS)
        [output] = engine.generate([PROMPT], params, use_tqdm=False)
        computed = engine.metrics()["scheduled_tokens"]
        fetched = engine.metrics()["external_cached_tokens"]
        connection.send({"text": output.text, "computed": computed, "fetched": fetched})
        # The shared memory lives as long as somebody uses it. A forked child holds both ends of
        # its pipe, so that it does not see the other end closed when its parent is killed.
        parent = multiprocessing.parent_process()
        wait([connection] if parent is None else [connection, parent.sentinel])


def start(name: str, role: str) -> tuple[Connection, Any]:
    """Start an engine in a process of its own, by the program's start method."""
    here, there = multiprocessing.Pipe()
    worker = multiprocessing.Process(target=run_engine, args=(name, role, there))
    worker.start()
    there.close()
    return here, worker


def main() -> int:
    """Run both engines, and write as JSON what each told, and what they share by."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--start-method", required=True, choices=METHODS)
    options = parser.parse_args()
    multiprocessing.set_start_method(options.start_method)
    if options.start_method == "forkserver":  # imported once, for both engines
        multiprocessing.set_forkserver_preload(["torch"])
    print("CUDA:", report_cuda(), file=sys.stderr)
    name = f"demo-{os.getpid()}"
    engines, answers = [], {"name": name}
    try:
        for role in ("kv_producer", "kv_consumer"):
            connection, worker = start(name, role)
            engines.append((connection, worker))
            try:
                answers[role] = connection.recv()
            except EOFError:
                worker.join()
                sys.exit(f"the {role}'s process ended with {worker.exitcode} and gave no answer")
    finally:
        for connection, worker in engines:
            with contextlib.suppress(OSError):  # it has ended
                connection.send("done")
            worker.join()
    print(json.dumps(answers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
