"""Searches for fast configurations of the attention kernels, in a given time.

It writes no table of the engine: what it finds is to be put into
``sample_engine/attention/tuning.py`` by hand. Kernels are first compiled on all cores, without the
GPU, into Triton's cache; then a process of its own tries them part by part, checking each result. A
configuration that does not compile, does not fit or is wrong is passed over; one that breaks or
hangs the process costs its part alone.

    python benchmarks/sweep_attention.py [--seconds 150] [--parts "decode16 fp8"]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from arguments import above_zero, needs_gpu
from results_file import parser, publish, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attention_candidates import (
    PARTS,
    Config,
    case_of,
    first_round,
    second_round,
    split_part,
    work_of,
)
from attention_cases import KINDS, DecodeCase, Timer, relative_error
from compile_ahead import start_compiling

_MOST_ERROR = 1e-2  # of a norm, in bfloat16
_SHOWN = 5
_COMPILE_SECONDS = 40
_START_SECONDS = 25  # of a process: importing torch, making data


# Compiling ahead


def _compile(part: str) -> None:
    """Compile the first round of a part for this GPU, without touching it."""
    name, _, index = part.partition("#")
    try:
        case = case_of(name, torch.device("cpu"))
        work_of(name, case, first_round(name)[int(index)])()
    except Exception:  # the sweep itself will meet it and say so
        return


def compile_ahead(parts: list[str]) -> float:
    """Compile on all cores; returns the seconds it took."""
    start = time.monotonic()
    jobs = [f"{part}#{index}" for part in parts for index in range(len(first_round(part)))]
    pool = multiprocessing.get_context("spawn").Pool(os.cpu_count(), start_compiling)
    done = pool.map_async(_compile, jobs, chunksize=2)
    done.wait(_COMPILE_SECONDS)
    pool.terminate()
    return time.monotonic() - start


# Trying, in a process of its own


def try_parts(parts: list[str], seconds: float) -> None:
    """Try the parts one after the other; print a line of JSON for each configuration."""
    timer = Timer()
    for number, part in enumerate(parts):
        print(json.dumps({"part": part, "started": True}), flush=True)
        until = time.monotonic() + seconds / (len(parts) - number)
        start = time.monotonic()
        _try_part(part, timer, until)
        seconds -= time.monotonic() - start


def _try_part(part: str, timer: Timer, until: float) -> None:
    case = case_of(part, torch.device("cuda"))
    expected = case.expected()
    results: list[tuple[float, Config]] = []

    def attempt(config: Config) -> None:
        report: dict[str, Any] = {"part": part, "config": dataclasses.asdict(config)}
        try:
            case.out.fill_(float("nan"))
            work = work_of(part, case, config)
            work()
            report["error"] = relative_error(case.out, expected)
            if report["error"] < _MOST_ERROR:
                report["ms"] = timer.milliseconds(work, rounds=7)
                results.append((report["ms"], config))
        except Exception as error:
            report["failed"] = f"{type(error).__name__}: {str(error)[:80]}"
        print(json.dumps(report), flush=True)
        torch.cuda.synchronize()  # raises if this process can do nothing more

    for config in first_round(part):
        if time.monotonic() < until:
            attempt(config)
    tried = {config for _, config in results}
    for _, best in sorted(results, key=lambda at: at[0])[:2]:
        for config in second_round(best):
            if time.monotonic() < until and config not in tried:
                tried.add(config)
                attempt(config)


def run_process(parts: list[str], seconds: float) -> list[dict[str, Any]]:
    """Try parts in processes: if one ends or hangs, another goes on with the part after it."""
    found: list[dict[str, Any]] = []
    until = time.monotonic() + seconds
    while parts and time.monotonic() < until - _START_SECONDS / 2:
        left = until - time.monotonic()
        command = [sys.executable, __file__, "--child", ",".join(parts), "--seconds", f"{left:.0f}"]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        watch = threading.Timer(left + _START_SECONDS, child.kill)
        watch.start()
        assert child.stdout is not None, "it was asked for"
        started: list[str] = []
        for line in child.stdout:
            if not line.startswith('{"part"'):
                continue  # Triton's words on a failure
            report = json.loads(line)
            if report.get("started"):
                started.append(report["part"])
            else:
                found.append(report)
                _tell(report)
        watch.cancel()
        if child.wait() == 0:
            break
        print(f"a process ended with {child.returncode} in {started[-1:] or 'its start'}")
        parts = parts[max(len(started), 1) :]
    return found


def _tell(report: dict[str, Any]) -> None:
    told = report.get("failed") or (
        f"{report['ms']:.3f} ms" if "ms" in report else f"WRONG, error {report['error']:.2g}"
    )
    print(f"{report['part']:18} {_short(report['config'])}: {told}", flush=True)


def _short(config: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items() if value is not None)


# All together


def main() -> None:
    """Compile, try, and print the best of each part."""
    made = parser("Search fast attention configurations on this GPU.")
    made.add_argument("--seconds", type=above_zero, default=150, help="for all of it (default 150)")
    made.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    made.add_argument("--child", help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.child is not None:
        try_parts(options.child.split(","), options.seconds)
        return
    parts = [part.strip() for part in options.parts.split(",")]
    for part in parts:
        if split_part(part)[0] not in PARTS:
            made.error(
                f"--parts: {part!r} is not one of {', '.join(PARTS)}, with or without one of "
                f"{', '.join(KINDS)} behind it"
            )
    needs_gpu(made)
    start = time.monotonic()
    print(f"compiled for {compile_ahead(parts):.0f} s", flush=True)
    found: list[dict[str, Any]] = []
    groups = [
        [part for part in parts if not part.startswith("hopper")],
        [part for part in parts if part.startswith("hopper")],
    ]
    for number, group in enumerate(groups):
        if group:
            left = options.seconds - (time.monotonic() - start) - _START_SECONDS
            share = len(group) / sum(map(len, groups[number:]))
            found += run_process(group, max(left * share, _START_SECONDS))
    _show(parts, found, options.save)


def _show(parts: list[str], found: list[dict[str, Any]], save: bool) -> None:
    rows: list[list[str]] = []
    best: dict[str, Any] = {}
    for part in parts:
        case = case_of(part, torch.device("cpu"))
        timed = [each for each in found if each["part"] == part and "ms" in each]
        for each in sorted(timed, key=lambda at: float(at["ms"]))[:_SHOWN]:
            seconds = each["ms"] / 1000
            speed = (
                f"{case.bytes / seconds / 1e12:.2f} TB/s"
                if isinstance(case, DecodeCase)
                else f"{case.flops / seconds / 1e12:.0f} TFLOP/s"
            )
            rows.append([part, f"{each['ms']:.3f}", speed, _short(each["config"])])
            best.setdefault(part, {"ms": each["ms"], "speed": speed, "config": each["config"]})
    text = table(["part", "ms", "speed", "configuration"], rows)
    failed = [each for each in found if "ms" not in each]
    data = {"best": best, "tried": len(found), "failed": len(failed)}
    publish("sweep_attention", "Attention configurations", text, data, save=save)


if __name__ == "__main__":
    main()
