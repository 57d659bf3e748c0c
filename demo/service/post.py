"""Punctuates a text and then summarizes it, by a language model in a process of its own.

With ``--start-method=fork`` this is the script of the report: it asks torch for a GPU, for its log,
and then forks the process of its engine. With ``spawn`` it is repaired.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_TOKENS = 8


def report_cuda() -> str:
    """For the log: whether this process could use a GPU."""
    import torch

    return "available" if torch.cuda.is_available() else "not available"


def work(text: str, answer: Connection) -> None:
    """Do both steps with one engine; in the process that was started for it."""
    sys.path.insert(0, str(ROOT))  # the engine runs from the checkout
    from sample_engine import LLM, SamplingParams

    with LLM(worker_method="inproc", max_model_len=512) as engine:
        params = SamplingParams(max_tokens=_TOKENS)
        steps = {}
        for step in ("punctuated", "summary"):
            [output] = engine.generate([f"# {step}: {text[-200:]}"], params, use_tqdm=False)
            text = steps[step] = output.text
    answer.send(steps)


def main() -> int:
    """Read a text, write JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--start-method", required=True, choices=("fork", "forkserver", "spawn"))
    options = parser.parse_args()
    multiprocessing.set_start_method(options.start_method)
    text = sys.stdin.read()
    print("CUDA:", report_cuda(), file=sys.stderr)
    here, there = multiprocessing.Pipe(duplex=False)
    worker = multiprocessing.Process(target=work, args=(text, there))
    worker.start()
    there.close()
    try:
        print(json.dumps(here.recv()))
    except EOFError:
        worker.join()
        sys.exit(f"the engine's process ended with {worker.exitcode} and gave no answer")
    worker.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
