"""Holds two sweeps against each other: ``python -m tests.gpu.surface.compare REAL SIMULATED``.

Prints a page in Markdown: what touches on the GPU, where the two differ and why, and what only one
of them has. ``--save FILE`` keeps what was measured on the GPU, for a test on machines without one.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import sys
from typing import Any

from tests.gpu.surface.calls import ARGUMENTS
from tests.gpu.surface.differences import why

Results = dict[str, tuple[bool | None, str]]
"""For each call, "NAME\\tARGUMENTS": whether it touched (None: it could not be asked), its end."""


def load(path: str) -> dict[str, Any]:
    """Read the outcome of a sweep."""
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
        data: dict[str, Any] = json.loads(file.read())
    return data


def spelled(key: str) -> str:
    """Write a call as one would in code."""
    name, _, arguments = key.partition("\t")
    is_function = name.replace(".", "").isidentifier()
    return f"{name}({arguments})" if is_function else name.replace("\n", "; ")


def differing(real: Results, simulated: Results) -> list[tuple[str, bool, str]]:
    """List the calls that touch on one side alone: the call, whether on the GPU, and why."""
    found = []
    for key in sorted(real.keys() & simulated.keys()):
        there, here = real[key][0], simulated[key][0]
        if there is not None and here is not None and there != here:
            found.append((spelled(key), there, why(spelled(key), there)))
    return found


def measured(real: Results) -> dict[str, Any]:
    """Give what the GPU says, in short: arguments that touch, out of how many that were tried."""
    functions: dict[str, dict[str, Any]] = {}
    clean: dict[str, list[str]] = {}
    statements: dict[str, list[str]] = {"touching": [], "clean": []}
    order = {text: number for number, text in enumerate(ARGUMENTS)}
    for name, keys in itertools.groupby(sorted(real), key=lambda key: key.partition("\t")[0]):
        tried = {key.partition("\t")[2]: real[key][0] for key in keys if real[key][0] is not None}
        if not name.replace(".", "").isidentifier():
            if tried:
                statements["touching" if any(tried.values()) else "clean"].append(name)
        elif any(tried.values()):
            touching = sorted((text for text in tried if tried[text]), key=order.__getitem__)
            last = max(order[text] for text in tried)
            functions[name] = {"tried": last + 1, "touching": touching}
        elif tried:
            module, _, short = name.rpartition(".")
            clean.setdefault(module, []).append(short)
    return {
        "touching": functions,
        "clean": {module: " ".join(names) for module, names in clean.items()},
        "statements": statements,
    }


def _names(results: Results) -> set[str]:
    return {key.partition("\t")[0] for key in results}


def _list(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def page(real: dict[str, Any], simulated: dict[str, Any]) -> str:
    """Write what the two sweeps say."""
    there, here = real["results"], simulated["results"]
    short = measured(there)
    common = there.keys() & here.keys()
    different = differing(there, here)
    asked = [key for key in there if there[key][0] is not None]
    unasked = sorted({spelled(key).split("(")[0] for key in there if there[key][0] is None})
    lines = [
        "# What in torch's public surface initializes CUDA: one H200 against the CPU build", "",
        "`python -m tests.gpu.surface.sweep --device real REAL.json` on the GPU, `--device absent`"
        " here, and `python -m tests.gpu.surface.compare REAL.json HERE.json`.", "",
        f"GPU: {real['about']}", "", f"here: {simulated['about']}", "",
        f"{len(asked)} calls were asked on the GPU, {sum(bool(there[k][0]) for k in asked)} touch;"
        f" {len(common)} of them were asked here, too.", "",
        "## What touches on the GPU", "",
        "| function | with these arguments |", "|---|---|",
    ]  # fmt: skip
    for name, about in short["touching"].items():
        shown = ", ".join(f"`({text})`" for text in about["touching"])
        lines.append(f"| `{name}` | {shown} |")
    lines += ["", "Statements that touch:", ""]
    lines += [f"- `{text}`".replace("\n", "; ") for text in short["statements"]["touching"]]
    lines += ["", f"## Where the two differ: {len(different)} calls", ""]
    lines += ["| call | touches | why |", "|---|---|---|"]
    for call, on_gpu, reason in different:
        where = "on the GPU" if on_gpu else "here"
        lines.append(f"| `{call}` | {where} | {reason or '**not explained**'} |")
    for title, left, right in (("GPU", there, here), ("here", here, there)):
        names = sorted(_names(left) - _names(right))
        lines += ["", f"## Only there ({title}): {len(names)} names", "", _list(names)]
    lines += ["", "## Not measured on the GPU, in part or at all", "", _list(unasked)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Compare; exit status 1 if a difference is not explained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("real")
    parser.add_argument("simulated")
    parser.add_argument("--save", help="a file for what was measured on the GPU")
    options = parser.parse_args()
    real, simulated = load(options.real), load(options.simulated)
    sys.stdout.write(page(real, simulated))
    if options.save:
        with open(options.save, "w", encoding="utf-8") as file:
            json.dump({"about": real["about"], **measured(real["results"])}, file, indent=1)
            file.write("\n")
    return any(not reason for _, _, reason in differing(real["results"], simulated["results"]))


if __name__ == "__main__":
    sys.exit(main())
