"""Measures, on a machine with a GPU, which calls poison a later fork and who notices.

Prints a table and a last line of JSON. Usage: ``python benchmarks/touch_table.py [--save]``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from arguments import needs_gpu
from results_file import parser, publish, table

from tests.gpu.test_touch_table import missing, probe
from tests.gpu.touch_cases import CASES

_PACKAGES = ("triton", "cupy-cuda13x", "numba", "jax", "cuda-bindings")
HEADER = ("call", "child poisoned", "torch.cuda.is_initialized()", "our probe", "line named")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case; exit status 1 if the plugin is wrong about one."""
    made = parser("Which calls poison a later fork, and who notices.")
    options = made.parse_args(arguments)
    needs_gpu(made)
    rows, shown, wrong, absent = [], [], [], []
    present = [case for case in CASES if not missing(case)]
    with ThreadPoolExecutor(4) as pool:
        measured = dict(zip(present, pool.map(probe, present), strict=True))
    for case in CASES:
        row = measured.get(case)
        if row is None:
            absent.append(case.name)
            shown.append([case.name, "-", "-", "-", f"({missing(case)} not installed)"])
            continue
        rows.append(row)
        place = Path(row["culprit"] or "-")
        own = place.name.startswith("touching.py")  # in a temporary folder of its own
        named = place.name if own else "/".join(place.parts[-3:])
        poisoned = "yes" if row["poisons"] else "no"
        told = (str(row["torch_is_initialized"]), str(row["probe"]))
        shown.append([case.name, poisoned, *told, named])
        right = row["probe"] == ("initialized" if row["poisons"] else "clean")
        if not right or row["poisons"] is not case.poisons:
            wrong.append(case.name)
    poisoning = [row for row in rows if row["poisons"]]
    data = {
        "cases": len(rows),
        "poisoning": len(poisoning),
        "seen_by_torch": sum(bool(row["torch_is_initialized"]) for row in poisoning),
        "seen_by_probe": sum(row["probe"] == "initialized" for row in poisoning),
        "named_by_injection": sum(row["witness"] == "injection" for row in poisoning),
        "false_alarms": sum(r["probe"] != "clean" for r in rows if not r["poisons"]),
        "not_installed": absent,
        "wrong": wrong,
    }
    title = "Which calls initialize the driver, and who notices"
    text = f"{table(HEADER, shown)}\n\n{data['poisoning']} of the {data['cases']} calls poison a "
    text += f"later fork: torch's own flag sees {data['seen_by_torch']} of them, the driver's word "
    text += f"{data['seen_by_probe']}. Of the others {data['false_alarms']} raised an alarm."
    publish("touch_table", title, text, data, save=options.save, packages=_PACKAGES)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
