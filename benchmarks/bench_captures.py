"""Measures what ``--cuda-fork-captures`` costs, and what it says of tests that are right.

Whole sessions run without it and with it, in turns: tests of the engine that capture graphs, and
tests that capture none. With ``--floor`` they also run under a dispatch mode that looks at nothing,
which is the least that following each operator from Python costs. Their CPU time is compared, as it
is and less that of starting, and the time that passes, which is what counts on a GPU. The load of
the machine stands in the record: a busy one adds time to sessions, and never takes any.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

from arguments import has_gpu
from results_file import parser, publish, table

ROOT = Path(__file__).resolve().parents[1]
GROUPS = {
    "graphs of the engine": (
        "tests/engine/graphs",
        "tests/engine/speculate/eagle/test_cudagraph.py",
    ),
    "graphs of the engine that are replayed most": (
        "tests/engine/whole/test_graphs.py",
        "tests/engine/whole/test_speculation_with_graphs.py",
        "tests/engine/with_the_plugin/test_capture_pair.py",
        "tests/engine/with_the_plugin/test_software_graph.py",
    ),
    "the model, no captures": ("tests/engine/model", "tests/engine/test_sampling.py"),
}
ON_A_GPU = "graphs of the engine on a GPU"
if has_gpu():
    GROUPS[ON_A_GPU] = ("tests/engine/whole/test_graphs_on_gpu.py",)
NOTHING = "tests/engine/model/test_rope.py"
"""Tests that take no time; a session of them is one that starts."""
PLANTED = {
    "test_a_plan_that_warm_up_and_capture_share_is_not_part_of_the_graph",
    "test_a_warm_up_with_the_captured_state_would_read_what_nobody_computed",
}
"""Tests that plant a bug, and so are rightly told of."""
VALUES = ("off", "check")
EMPTY = "off, an empty dispatch mode"


def session(paths: tuple[str, ...], how: str) -> tuple[float, float, str]:
    """Return the CPU seconds of a session, those that passed, and its output."""
    began = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    options = ["-v", "-rf", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    if how == EMPTY:
        options += ["-p", "empty_mode", "--cuda-fork-captures=off"]
    else:
        options += [f"--cuda-fork-captures={how}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *paths],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not re.search(r"\d+ passed", done.stdout):
        raise SystemExit(f"no test of {' '.join(paths)} passed:\n{done.stdout}{done.stderr}")
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, time.perf_counter() - began, done.stdout


def told(output: str) -> tuple[int, int, int, int, int]:
    """Return how many tests passed, were accused, rightly told, and what was (not) judged."""
    accused = set(re.findall(r"^FAILED \S+::(\S+)", output, re.MULTILINE))
    passed = re.search(r"(\d+) passed", output)
    gaps = re.search(r"^not judged: (\d+) of (\d+) values", output, re.MULTILINE)
    gap, judged = (int(gaps[1]), int(gaps[2])) if gaps else (0, 0)
    planted = len(accused & PLANTED)
    return int(passed[1]) if passed else 0, len(accused) - planted, planted, gap, judged


def main() -> None:
    """Measure, print, and keep the results if that is asked for."""
    made = parser("What --cuda-fork-captures costs.", rounds=3)
    made.add_argument("--group", action="append", choices=sorted(GROUPS), help="all by default")
    made.add_argument("--floor", action="store_true", help="also under an empty dispatch mode")
    options = made.parse_args()
    values = (*VALUES, EMPTY) if options.floor else VALUES
    rows, data = [], []
    start = min(session((NOTHING,), "off")[0] for _ in range(options.rounds))
    for name in options.group or GROUPS:
        paths = GROUPS[name]
        seconds: dict[str, list[float]] = {how: [] for how in values}
        passing: dict[str, list[float]] = {how: [] for how in values}
        outputs: dict[str, str] = {}
        for _ in range(options.rounds):
            for how in values:
                took, passed_s, outputs[how] = session(paths, how)
                seconds[how].append(took)
                passing[how].append(passed_s)
        base = min(seconds["off"])
        for how in values:
            least = min(seconds[how])
            passed, accused, planted, gap, judged = told(outputs[how])
            ratio, of_tests = least / base, (least - start) / (base - start)
            wall = min(passing[how])
            wall_ratio = wall / min(passing["off"])
            rows.append([f"{name}, {how}", f"{least:.1f}", f"{ratio:.2f}", f"{of_tests:.2f}",
                         f"{wall:.1f}", f"{wall_ratio:.2f}",
                         str(passed), str(accused), str(planted),
                         f"{gap} of {judged}"])  # fmt: skip
            data.append({"group": name, "how": how, "cpu_s": least, "ratio": ratio,
                         "wall_s": wall, "wall_ratio": wall_ratio,
                         "ratio_of_tests": of_tests, "passed": passed, "accused": accused,
                         "planted": planted, "not_judged": gap, "of": judged})  # fmt: skip
    header = ["session", "CPU, s", "to off", "the same, less start", "passing, s", "to off",
              "passed", "accused",
              "planted bugs told", "values not judged"]  # fmt: skip
    shown = f"{table(header, rows)}\n\nstart of a session: {start:.1f} s of CPU"
    publish("captures", "Sessions whose captures are looked at", shown,
            {"rounds": options.rounds, "start_s": start, "rows": data},
            save=options.save)  # fmt: skip


if __name__ == "__main__":
    main()
