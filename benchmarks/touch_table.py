"""Measures, on a machine with a GPU, which calls poison a later fork and who notices.

Prints a table and a last line of JSON. Usage: ``python benchmarks/touch_table.py``.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.gpu.test_touch_table import missing, probe
from tests.gpu.touch_cases import CASES

_PACKAGES = ("torch", "triton", "cupy-cuda13x", "numba", "jax", "cuda-bindings", "pytest")


def versions() -> dict[str, str]:
    """Versions of everything that matters to the table."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    found["gpu"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    return found


def main() -> int:
    """Measure every case; exit status 1 if the plugin is wrong about one."""
    rows, wrong, absent = [], [], []
    print("| call | child poisoned | torch.cuda.is_initialized() | our probe | line named |")
    print("|---|---|---|---|---|")
    present = [case for case in CASES if not missing(case)]
    with ThreadPoolExecutor(4) as pool:
        measured = dict(zip(present, pool.map(probe, present), strict=True))
    for case in CASES:
        row = measured.get(case)
        if row is None:
            absent.append(case.name)
            print(f"| {case.name} | - | - | - | ({missing(case)} not installed) |")
            continue
        rows.append(row)
        named = row["culprit"].replace(str(Path(sys.prefix)), "") if row["culprit"] else "-"
        named = "/".join(named.split("/")[-3:])
        print(
            f"| {case.name} | {'yes' if row['poisons'] else 'no'} | {row['torch_is_initialized']} "
            f"| {row['probe']} | {named} |",
            flush=True,
        )
        right = row["probe"] == ("initialized" if row["poisons"] else "clean")
        if not right or row["poisons"] is not case.poisons:
            wrong.append(case.name)
    poisoned = [row for row in rows if row["poisons"]]
    summary = {
        "cases": len(rows),
        "poisoning": len(poisoned),
        "seen_by_torch": sum(bool(row["torch_is_initialized"]) for row in poisoned),
        "seen_by_probe": sum(row["probe"] == "initialized" for row in poisoned),
        "named_by_injection": sum(row["witness"] == "injection" for row in poisoned),
        "false_alarms": sum(r["probe"] != "clean" for r in rows if not r["poisons"]),
        "not_installed": absent,
        "wrong": wrong,
        "versions": versions(),
    }
    print(json.dumps(summary))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
