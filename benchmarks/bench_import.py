"""Measures the time that importing the plugin adds to `import pytest`.

pytest-xdist's plugin is the peer, measured in the same run. Each figure comes from a fresh
interpreter, which measures its second import alone; the plugins take turns, so that what else the
machine does hits them alike.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from results_file import parser, publish, table

PLUGINS = {"pytest-cudafork": "pytest_cudafork.plugin", "pytest-xdist": "xdist.plugin"}
PEER = "pytest-xdist"

MEASURE = """
import sys, time
import pytest
modules = len(sys.modules)
start, cpu = time.perf_counter(), time.process_time()
import {module}
print(time.perf_counter() - start, time.process_time() - cpu, len(sys.modules) - modules)
"""


def measure(module: str) -> tuple[float, float, int]:
    """Return the seconds, those of CPU, and the number of modules that one import adds."""
    command = [sys.executable, "-c", MEASURE.format(module=module)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seconds, cpu, modules = done.stdout.split()
    return float(seconds), float(cpu), int(modules)


def main() -> None:
    """Measure, print, and keep the results if that is asked for."""
    options = parser("Time of importing the plugin over `import pytest`.", rounds=40).parse_args()
    times: dict[str, list[float]] = {name: [] for name in PLUGINS}
    cpu: dict[str, list[float]] = {name: [] for name in PLUGINS}
    modules: dict[str, int] = {}
    for number in range(options.rounds + 1):
        for name, module in PLUGINS.items():
            seconds, spent, modules[name] = measure(module)
            if number:  # the first round writes the bytecode files
                times[name].append(seconds * 1000)
                cpu[name].append(spent * 1000)
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = [
        [
            name,
            f"{medians[name]:.2f}",
            f"{min(times[name]):.2f}",
            f"{medians[name] / medians[PEER]:.2f}",
            f"{min(cpu[name]):.2f}",
            str(modules[name]),
        ]
        for name in PLUGINS
    ]
    header = ["import after pytest", "median ms", "min ms", f"to {PEER}", "min CPU ms", "modules"]
    data = {
        "rounds": options.rounds,
        "median_ms": {name: round(value, 3) for name, value in medians.items()},
        "min_cpu_ms": {name: round(min(values), 3) for name, values in cpu.items()},
        "ratio_to_xdist": round(medians["pytest-cudafork"] / medians[PEER], 3),
        "modules": modules,
    }
    title = "Time of importing the plugin"
    publish("import", title, table(header, rows), data, save=options.save)


if __name__ == "__main__":
    main()
