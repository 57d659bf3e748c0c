"""Writes the list of the driver's entry points, `entry_points.inc`, from NVIDIA's headers.

What an entry point does is in `phantom_driver.c`. Run this when a new CUDA toolkit adds names, and
look at the difference:

    python tools/generate_entry_points.py /usr/local/cuda/include .../triton/backends/nvidia/include

Each argument is a directory with `cuda.h` and `cudaTypedefs.h`; what is written is their union. The
headers are read through the C preprocessor and not by eye, because a name such as `cuInit_v2` that
looks plausible and does not exist makes real programs take a wrong path.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

OUTPUT = Path(__file__).parent.parent / "pytest_cudafork/observe/driver/native/entry_points.inc"

#: Headers of the toolkit whose functions live in libcuda.so.1 too; those without GL or EGL types.
EXTRA_HEADERS = ("cudaProfiler.h",)

#: Ways to look at the header: as users see it, as the driver's own authors see it.
VIEWS = ((), ("-D__CUDA_API_VERSION_INTERNAL",), ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",))

#: What the driver itself says for the codes people meet; the others are spelled from their names.
ERROR_TEXTS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    4: "driver shutting down",
    34: "CUDA driver is a stub library",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    200: "device kernel image is invalid",
    201: "invalid device context",
    400: "invalid resource handle",
    500: "named symbol not found",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    719: "unspecified launch failure",
    801: "operation not supported",
    999: "unknown error",
}


def preprocess(include: Path, header: str, flags: tuple[str, ...]) -> str:
    """Return `header` of the directory `include` after the C preprocessor."""
    command = ["cc", "-E", "-P", "-x", "c", *flags, f"-I{include}", "-"]
    source = f"#include <{header}>\n"
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    return done.stdout


def function_names(include: Path) -> set[str]:
    """Return every entry point the headers in `include` declare, under its exported name."""
    names: set[str] = set()
    for header in ("cuda.h", *EXTRA_HEADERS):
        if (include / header).exists():
            for view in VIEWS:
                text = preprocess(include, header, view)
                found = re.findall(r"(inline\s+)?\bCUresult\s+(cu[A-Z]\w*)\s*\(", text)
                names.update(name for inline, name in found if not inline)
    return names


def versions(include: Path) -> dict[str, set[int]]:
    """Return, per base name, the CUDA versions in which a new form of it appeared.

    Per-thread forms (`_ptsz`) came later than the plain ones and follow their numbering.
    """
    found: dict[str, set[int]] = defaultdict(set)
    for header in ("cudaTypedefs.h", "cudaProfilerTypedefs.h"):
        if (include / header).exists():
            text = (include / header).read_text(encoding="utf-8")
            for name, version in re.findall(r"\bPFN_(cu\w+?)_v(\d+)\)", text):
                found[name].add(int(version))
    return found


def error_names(include: Path) -> dict[int, str]:
    """Return the names of CUresult by value."""
    text = preprocess(include, "cuda.h", ())
    body = re.search(r"enum cudaError_enum\s*\{(.*?)\}", text, re.S)
    if body is None:
        raise SystemExit(f"{include}/cuda.h has no 'enum cudaError_enum': has its layout changed?")
    return {int(value): name for name, value in re.findall(r"(CUDA_\w+)\s*=\s*(\d+)", body[1])}


def forms(base: str, names: set[str]) -> list[str]:
    """Return the exported forms of `base`, oldest first: `cuX`, `cuX_v2`, `cuX_v3`, ..."""
    numbered = sorted(n for n in names if re.fullmatch(re.escape(base) + r"_v\d+", n))
    return ([base] if base in names else []) + numbered


def proc_rows(names: set[str], since: dict[str, set[int]]) -> list[tuple[str, int, str, str]]:
    """Return what `cuGetProcAddress` needs: base name, first version, plain and per-thread form."""
    legacy = {n for n in names if not n.endswith(("_ptds", "_ptsz"))}
    bases = {re.sub(r"_v\d+$", "", n) for n in legacy}
    rows = []
    for base in sorted(bases):
        known, first_seen = forms(base, legacy), sorted(since.get(base, ()))
        # Newest form with newest version; a form older than any typedef was always there.
        first_seen = [0] * (len(known) - len(first_seen)) + first_seen[-len(known) :]
        for form, version in zip(known, first_seen, strict=True):
            per_thread = next((form + s for s in ("_ptsz", "_ptds") if form + s in names), form)
            rows.append((base, version, form, per_thread))
    return rows


def render(includes: list[Path]) -> str:
    """Return the text of `entry_points.inc` for the union of the header directories."""
    names: set[str] = set()
    since: dict[str, set[int]] = defaultdict(set)
    errors: dict[int, str] = {}
    for include in includes:
        names |= function_names(include)
        errors |= error_names(include)
        for base, seen in versions(include).items():
            since[base] |= seen
    lines = ["/* Written by tools/generate_entry_points.py from NVIDIA's headers; do not edit. */"]
    lines += ["#ifdef ENTRY", *(f"ENTRY({n})" for n in sorted(names)), "#endif"]
    lines += ["#ifdef PROC"]
    lines += [f"PROC({b}, {v}, {f}, {p})" for b, v, f, p in proc_rows(names, since)]
    lines += ["#endif", "#ifdef ERROR"]
    for code, name in sorted(errors.items()):
        spelled = name.removeprefix("CUDA_ERROR_").lower().replace("_", " ")
        lines.append(f'ERROR({code}, {name}, "{ERROR_TEXTS.get(code, spelled)}")')
    return "\n".join([*lines, "#endif", ""])


def main() -> int:
    """Write the file; with `--check`, only say whether it is up to date (exit status 1 if not)."""
    parser = argparse.ArgumentParser(description="Regenerate the list of CUDA driver entry points.")
    parser.add_argument("include", nargs="+", type=Path, help="directory with cuda.h")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args()
    text = render(args.include)
    if args.check:
        if OUTPUT.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{OUTPUT} is out of date: run this script without --check.\n")
            return 1
        return 0
    OUTPUT.write_text(text, encoding="utf-8")
    sys.stderr.write(f"{OUTPUT}: {text.count('ENTRY(')} entry points\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
