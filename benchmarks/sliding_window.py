"""Tries a static cache of transformers with a sliding window under a CUDA graph.

A short program captures the cache's ``update`` and replays it beside eager code until the window is
full. On a machine without a GPU ``run --captures`` stands in for CUDA's graphs. Usage: ``python
benchmarks/sliding_window.py [--save]``. The exit status is 1 if the cache is right, so that what
the docs say of it does not hold any more.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from results_file import parser, publish, table

WINDOW, LAST = 4, 8
PROGRAM = f"""\
import torch
from transformers.cache_utils import StaticSlidingWindowLayer

eager, graphed = (
    StaticSlidingWindowLayer(max_cache_len=16, sliding_window={WINDOW}) for _ in range(2)
)
static = torch.ones(1, 1, 1, 2)
for layer in (eager, graphed):
    layer.update(static.clone(), static.clone())
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    keys, _ = graphed.update(static, static)
for number in range(2, {LAST + 1}):
    static.fill_(number)
    graph.replay()
    wanted, _ = eager.update(torch.full_like(static, number), torch.full_like(static, number))
    told = [each[0, 0, :, 0].tolist() for each in (keys, wanted)]
    print(number, *told, torch.equal(keys, wanted), sep="|")
"""


def main() -> int:
    """Run the program, and show what it said."""
    options = parser("A sliding window of transformers under a CUDA graph.").parse_args()
    with tempfile.TemporaryDirectory() as made:
        file = Path(made, "slide.py")
        file.write_text(PROGRAM, encoding="utf-8")
        command = [sys.executable, "-m", "pytest_cudafork", "run", "--captures", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line.split("|") for line in done.stdout.splitlines() if line.count("|") == 3]
    raised = re.findall(r"^\S*Error: .*", done.stderr, re.MULTILINE)
    end = raised[-1] if raised else "no replay raised"
    text = f"```python\n{PROGRAM}```\n\n"
    text += table(("replay of", "keys", "by eager code", "equal"), rows)
    text += f"\n\nThen: `{end}`"
    equal = [row[3] == "True" for row in rows]
    data = {"equal": equal, "end": end, "status": done.returncode}
    title = "A static cache with a sliding window of transformers under a CUDA graph"
    publish("sliding_window", title, text, data, save=options.save, packages=["transformers"])
    return int(not raised and all(equal))


if __name__ == "__main__":
    sys.exit(main())
