"""Which specimens are caught by whom: by our check and by what others ask, buggy and fixed.

Every specimen's buggy form should be told, with the line to change, and nothing should be said of
its fixed form. Prints tables and a last line of JSON. Usage: ``python benchmarks/catch_rate.py
[--only WORD] [--gpu] [--jobs N] [--save]``.

For forks the methods are

- ``torch``: ``torch.cuda.is_initialized()``, asked before every fork;
- ``driver``: whether the driver has been initialized, asked of it before every fork;
- ``vllm``: what vLLM's guard asks before it makes a process;
- ``present``, ``absent``: our check, on a phantom with a GPU, and as it is without one;
- ``gpu``: our check on the driver of this machine (``--gpu``).

A specimen about touches in the pytest process need not fork: there the first three are asked after
the collection and after each test, too. On a machine without a driver they are asked on a phantom.

For graphs they are ``capture``, that a capture fails by itself; ``look``, our look at the captures
of programs that know nothing of the plugin; ``checks``, ``capture_pair`` and
``assert_replay_equals_eager``. The questions about initialization say nothing of graphs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from arguments import at_least, needs_gpu, some

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import catch_forks
import catch_graphs
from catch_peers import PEERS
from catch_words import Verdict, counts, rows
from results_file import parser, publish, table

from tests.specimens.catalog import CATALOG

TOPIC = "catch_rate"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and show or keep the outcome."""
    options = _options(arguments)
    methods = (*PEERS, "gpu") if options.gpu else (*PEERS, "present", "absent")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        forks: dict[str, dict[str, Verdict]] = {}
        if "forks" in options.parts:
            specimens = catch_forks.specimens(options.only)
            with ThreadPoolExecutor(options.jobs) as pool:  # what runs is sessions of their own
                made_by = [
                    pool.submit(catch_forks.measure, each, methods, folder / each.name)
                    for each in specimens
                ]
                for each, future in zip(specimens, made_by, strict=True):
                    forks[each.name] = future.result()
                    print(f"{each.name} ...", file=sys.stderr, flush=True)
        graphs: dict[str, dict[str, Verdict]] = {}
        if "graphs" in options.parts:
            print("graphs ...", file=sys.stderr, flush=True)
            backend = "cuda" if options.gpu else "software"
            graphs = catch_graphs.measure(backend, options.only, folder / "graphs", options.jobs)
    text, data = report(forks, methods, graphs)
    publish(TOPIC, "What is caught, and by whom", text, data, save=options.save)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = parser("Which specimens are caught by whom.")
    made.add_argument("--only", default="", help="only specimens whose name holds this word")
    made.add_argument("--gpu", action="store_true", help="on the driver of this machine")
    made.add_argument(
        "--parts", nargs="+", choices=("forks", "graphs"), default=["forks", "graphs"]
    )
    made.add_argument(
        "--jobs", type=at_least(1), default=1, help="how many specimens run at once; 1"
    )
    options = made.parse_args(arguments)
    if options.gpu:
        needs_gpu(made)
    names = [each.name for each in CATALOG] if "forks" in options.parts else []
    names += catch_graphs.names() if "graphs" in options.parts else []
    some(made, "--only", options.only, [name for name in names if options.only in name], names)
    return options


def report(
    forks: Mapping[str, Mapping[str, Verdict]],
    methods: Sequence[str],
    graphs: Mapping[str, Mapping[str, Verdict]],
) -> tuple[str, dict[str, Any]]:
    """Return the tables, and the data for the line of JSON."""
    parts, data = [], {}
    for title, found, names in (
        ("Forks", forks, methods),
        ("Graphs", graphs, catch_graphs.METHODS),
    ):
        if not found:
            continue
        totals = {
            name: counts(said[name] for said in found.values() if name in said) for name in names
        }
        header = ("method", *next(iter(totals.values())))
        told = [(name, *map(str, each.values())) for name, each in totals.items()]
        each_one = table(("specimen", *names), rows(found, names))
        reasons = [
            f"- {specimen}, {method}: {verdict.why}"
            for specimen, said in found.items()
            for method, verdict in said.items()
            if verdict.why
        ]
        hints = [hint(found)] if title == "Forks" else []
        parts += [f"## {title}", table(header, told), *hints, each_one, "\n".join(reasons)]
        data[title.lower()] = {
            "totals": totals,
            "missed": {
                name: [one for one, said in found.items() if name in said and not said[name].caught]
                for name in names
            },
            "alarms": {
                name: [one for one, said in found.items() if name in said and said[name].alarm]
                for name in names
            },
        }
    return "\n\n".join(filter(None, parts)), data


def hint(forks: Mapping[str, Mapping[str, Verdict]]) -> str:
    """Return what the numbers of torch's flag have to be read with."""
    torch = {each.name for each in CATALOG if each.needs}
    with_torch = [said["torch"] for name, said in forks.items() if name in torch]
    return (
        f"{len(forks) - len(with_torch)} of these specimens touch without torch, whichever call "
        "the reported bug made, and run without it: there torch's flag can see nothing. "
        f"Of the other {len(with_torch)} it sees {sum(each.caught for each in with_torch)}. "
        "Right lines: a flag names none."
    )


if __name__ == "__main__":
    sys.exit(main())
