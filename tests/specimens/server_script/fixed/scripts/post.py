"""Post-processing: punctuation and summary, by a language model in worker processes."""

import argparse
import ctypes
import json
import multiprocessing
import sys


def report_cuda() -> str:
    """For the log: whether this process could use a GPU."""
    try:
        status = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        status = 100
    return "available" if status == 0 else f"not available ({status})"


def _punctuate(segments: "multiprocessing.Queue", results: "multiprocessing.Queue") -> None:
    text = segments.get()
    results.put(text[:1].upper() + text[1:] + ".")


def run_llm(text: str) -> str:
    """What the engine does: one worker process with the default start method."""
    segments, results = multiprocessing.Queue(), multiprocessing.Queue()
    worker = multiprocessing.Process(target=_punctuate, args=(segments, results))
    worker.start()
    segments.put(text)
    answer = results.get(timeout=30)
    worker.join(30)
    return answer


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", required=True)
    arguments = parser.parse_args()
    print("CUDA:", report_cuda(), file=sys.stderr)
    print(json.dumps({"text": run_llm(arguments.text)}))
    return 0


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn", force=True)
    sys.exit(main())
