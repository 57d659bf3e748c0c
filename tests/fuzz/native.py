"""Calls the native libraries in random order from several threads: ``python -m tests.fuzz.native``.

A program in C is written from the sources: each entry point with arguments of the declared kinds.
It is compiled together with them, under AddressSanitizer (with UndefinedBehaviorSanitizer) and
under ThreadSanitizer, and runs for some seconds with a seed. A third part loads the phantom under
AddressSanitizer into Python, where touches read the stacks of threads that run. In the end every
line of the ledger must be a whole record. Needs gcc: ``make fuzz-native``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from arguments import at_least
from results_file import parser, publish, table

from pytest_cudafork.observe.base import records

PROJECT = Path(__file__).resolve().parents[2]
NATIVE = PROJECT / "pytest_cudafork/observe/driver/native"
SANITIZERS = {
    # its allocator does not survive a fork while another thread allocates
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DFORKS=0"),
    "thread": ("-fsanitize=thread", "-DFORKS=1"),
}
_LATE_SECONDS = 240  # beyond what a program was told to run
_OPTIONS = {
    # a face that has been chosen is kept for who may still read it
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "die_after_fork=0:halt_on_error=1",
}
_PHANTOM = tuple(
    NATIVE / f"{name}.c"
    for name in (
        *("phantom_driver", "phantom_answers", "phantom_face", "entry_points", "witness"),
        *("record", "text", "native_stack", "python_stack", "python_dump"),
    )
)
_FUNCTION = re.compile(r"^EXPORT ([\w ]+?\*?)\s*(\w+)\(([^)]*)\)", re.MULTILINE)
_UNCALLED = ("cudafork_hook", "cudafork_unhook", "cudafork_arm")
"""They take objects of Python; or a signal and a descriptor, which would be of another thread."""

_SHOWN = 6000
_DRIVER = Path(__file__).with_name("native_calls.c")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run each part for some seconds."""
    given = parser("The native libraries under sanitizers.")
    given.add_argument("--seconds", type=at_least(1), default=60, help="for each part; default 60")
    given.add_argument("--threads", type=at_least(1), default=4)
    given.add_argument("--seed", type=int, default=1)
    options = given.parse_args(arguments)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as made:
        for part, command, more in parts(
            Path(made), options.seconds, options.threads, options.seed
        ):
            ledger = Path(made, f"{len(rows)}.ledger")
            rows.append(run(part, command, ledger, options.seconds, **more))
            line = "{part:20} {calls:>10} calls, {records:>7} records  {failure}"
            sys.stdout.write(line.format(**rows[-1]) + "\n")
            sys.stdout.flush()
    shown = [
        [
            str(row["part"]),
            f"{row['calls']:,}",
            f"{row['records']:,}",
            str(row["failure"] or "none"),
        ]
        for row in rows
    ]
    text = table(("part", "calls", "records", "failed"), shown)
    title = "The native libraries under sanitizers"
    publish("fuzz_native", title, text, {"parts": rows}, save=options.save)
    return int(any(row["failure"] for row in rows))


def parts(
    folder: Path, seconds: int, threads: int, seed: int
) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Build each part and yield its name, its command, and its variables."""
    for name in SANITIZERS:
        yield name, [str(build(name, folder)), *map(str, (seconds, threads, seed))], {}
    library = str(build_library(folder))
    asan = subprocess.run(
        [os.environ.get("CC", "cc"), "-print-file-name=libasan.so"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    command = [sys.executable, "-c", _IN_PYTHON, library, str(seconds)]
    yield "address, in Python", command, {"LD_PRELOAD": asan.stdout.strip()}


def entry_points() -> list[tuple[str, str, list[str]]]:
    """Return what the libraries export and answer: its type, its name, its arguments."""
    sources = (*_PHANTOM, NATIVE / "phantom_nvml.c")
    found = [each for path in sources for each in _FUNCTION.findall(path.read_text())]
    return [
        (kind.strip(), name, [one.strip() for one in given.split(",")])
        for kind, name, given in found
        if name not in _UNCALLED
    ]


def calls(functions: Sequence[tuple[str, str, list[str]]]) -> str:
    """Return a function in C for each entry point, and the table of them."""
    lines, rows = [], []
    for kind, name, arguments in functions:
        declared = [re.sub(r"struct \w+", "void", one) for one in arguments]
        lines.append(f"{kind} {name}({', '.join(declared)});")
        given = ", ".join(_argument(one) for one in declared if one != "void")
        lines.append(f"static void call_{name}(struct chance *c)")
        lines.append(f"{{ (void)c; (void){name}({given}); }}")
        rows.append(f'    {{"{name}", call_{name}}},')
    table = (
        "static const struct { const char *name; void (*call)(struct chance *); } answered[] = {"
    )
    return "\n".join([*lines, table, *rows, "};\n"])


def _argument(declaration: str) -> str:
    """Return what is passed: for a pointer to be written to a buffer, now and then NULL."""
    name = declaration.split()[-1].lstrip("*")
    if "*" in declaration and "**" not in declaration:
        if "const char" in declaration:
            return "some_text(c)"
        if name in ("handle", "context"):
            return "some_handle(c)"
    if "*" in declaration:
        return "some_buffer(c)"
    return "some_size(c)" if name == "size" else "some_number(c)"


def build(sanitizer: str, folder: Path) -> Path:
    """Compile the program that calls everything, with the sources; return its path."""
    (folder / "calls.inc").write_text(calls(entry_points()), encoding="utf-8")
    flags = (*SANITIZERS[sanitizer], f"-I{NATIVE}", f"-I{folder}")
    return _compile(folder / sanitizer, flags, _DRIVER, *_PHANTOM, NATIVE / "phantom_nvml.c")


def build_library(folder: Path) -> Path:
    """Compile the phantom under AddressSanitizer as the library that Python loads."""
    flags = ("-fsanitize=address", "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-Bsymbolic")
    return _compile(folder / "libcuda.so.1", flags, *_PHANTOM, NATIVE / "c_functions.c")


def _compile(output: Path, flags: Sequence[str], *sources: Path) -> Path:
    common = ("-std=gnu11", "-g", "-O1", "-pthread", "-fno-omit-frame-pointer")
    subprocess.run(
        [os.environ.get("CC", "cc"), *common, *flags, "-o", output, *sources, "-ldl"], check=True
    )
    return output


def run(
    part: str, command: Sequence[str], ledger: Path, seconds: int, **more: str
) -> dict[str, object]:
    """Run a program; return how many calls it made, and what was wrong."""
    ledger.touch()
    # what is refused is said on stderr, once and again: reports of sanitizers go elsewhere
    logs = ledger.with_suffix(".report")
    options = {name: f"{words}:log_path={logs}" for name, words in _OPTIONS.items()}
    env = {**os.environ, **options, **more, "_CUDAFORK_LEDGER": str(ledger)}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            told, _ = process.communicate(timeout=seconds + _LATE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            told = "it hangs"
    reports = [each.read_text(errors="replace") for each in logs.parent.glob(f"{logs.name}.*")]
    lines = [line for line in ledger.read_bytes().split(b"\n") if line]
    torn = [line for line in lines if records.decode(line) is None]
    failure = f"{len(torn)} torn lines, as {torn[0]!r}" if torn else ""
    if process.returncode != 0 or reports:
        failure = f"status {process.returncode}: {told}{''.join(reports)[:_SHOWN]}"
    made = re.search(r"(\d+) calls", told)
    return {
        "part": part,
        "calls": int(made[1]) if made else 0,
        "records": len(lines),
        "failure": failure,
    }


_IN_PYTHON = """\
import ctypes, random, sys, threading, time
library, until = ctypes.CDLL(sys.argv[1]), time.monotonic() + float(sys.argv[2])
library.cudafork_arm(12, 2)
calls = [0] * 4

def deep(number, depth):
    if depth:
        return [deep(number, depth - 1) for _ in "a"] if depth % 3 else deep(number, depth - 1)
    library.cudafork_reset(random.choice((0, 0, 1, 2)))
    library.cuInit(0)
    calls[number] += 2

def touches(number):
    while time.monotonic() < until:
        scope = {"deep": deep, "number": number}
        name = "".join(random.choices("abc\\u00e9\\u4e2d\\U0001f600", k=4))
        source = f"def named(): deep(number, {random.randrange(300)})\\nnamed()"
        exec(compile(source, name * random.randrange(40), "exec"), scope)

def churns():
    while time.monotonic() < until:
        sum(x for x in (len(str(i)) for i in range(50)))

threads = [threading.Thread(target=touches, args=(i,)) for i in range(3)]
threads.append(threading.Thread(target=churns))
for each in threads: each.start()
for each in threads: each.join()
print(sum(calls), "calls")
"""


if __name__ == "__main__":
    sys.exit(main())
