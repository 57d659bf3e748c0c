"""Runs pytest sessions with faults in them, and judges which promises each session kept.

A session has a file for each of its faults, with a test before and a test after it. It has a folder
for temporary files and, where this process may make one, a ``/dev/shm`` of its own, so that what is
left in them is the session's. A session that did not end in time, did not report all of its tests,
or left what can't be assigned to one of its faults says nothing of the single fault: it is run once
more in two halves.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from fault_cases import Fault

PROMISES = ("outcome", "others", "output", "nothing left", "time")
LIMIT = 3
"""Seconds that a test may take, for methods that know a time limit."""

SESSION = "FAULTS_SESSION"
"""Environment variable by which the processes of a session are found."""

_HERE = Path(__file__).resolve().parent
# Seconds that a session may take: of one fault, for each further one. Of a test that is killed at
# its limit, stacks are waited for 10 s.
_ALONE, _EACH_MORE = 20, 5
_TESTS = 3  # in the file of a fault
_TO_END = 3.0  # seconds that processes have to be gone after the session
_OURS = (*("-p", "pytest_cudafork.plugin"), f"--cuda-fork-isolate-timeout={LIMIT}")


@dataclass(frozen=True)
class Method:
    """A way to isolate tests.

    Attributes:
        arguments: what pytest is given.
        helper: the decorator in ``fault_helpers`` that test functions get.
        limits: whether it ends a test that takes too long.
        ours: whether it is the plugin's, so that its words are judged, too.

    """

    arguments: tuple[str, ...] = ()
    helper: str = ""
    limits: bool = False
    ours: bool = False


METHODS = {
    **{
        name: Method((*_OURS, f"--cuda-fork-isolate={name}"), limits=True, ours=True)
        for name in ("fork", "forkserver", "spawn")
    },
    "none": Method(),
    "pytest-forked": Method(("-p", "pytest_forked", "--forked")),
    "pytest-isolate": Method(
        ("-p", "pytest_isolate.plugin", "--isolate", f"--isolate-timeout={LIMIT}"), limits=True
    ),
    "pytest-isolated": Method(
        ("-p", "pytest_isolated.plugin", "--isolated", f"--isolated-timeout={LIMIT}"), limits=True
    ),
    "helper-fork": Method(helper="by_fork"),
    "helper-spawn": Method(helper="by_spawn"),
}
XDIST = ("-p", "xdist.plugin", "-n2")


def lacking(ways: Iterable[tuple[str, bool]]) -> list[str]:
    """Return which plugins these methods, with pytest-xdist or not, take and are not here."""
    wanted = [part for name, xdist in ways for part in _plugins(name, xdist)]
    return sorted({each for each in wanted if importlib.util.find_spec(each) is None})


def _plugins(name: str, xdist: bool) -> list[str]:
    """Return the packages that pytest is told to load."""
    given = iter((*METHODS[name].arguments, *(XDIST if xdist else ())))
    return [next(given).partition(".")[0] for option in given if option == "-p"]


@dataclass(frozen=True)
class Case:
    """One test of a JUnit report: ``said`` is how it ended, ``words`` what it failed with."""

    file: str
    name: str
    said: frozenset[str]
    words: str = ""
    output: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Left:
    """Something that a session left, and the fault that it belongs to; "" where none is known."""

    what: str
    fault: str = ""


@dataclass(frozen=True)
class Seen:
    """What one session did: its tests, whether it ended in time, and what it left."""

    cases: Sequence[Case]
    ended: bool
    left: Sequence[Left] = ()

    def of(self, fault: Fault) -> list[Case]:
        """Return the tests of a fault's file."""
        return [each for each in self.cases if each.file == f"test_{fault.name}"]


def judge(fault: Fault, method: str, seen: Seen) -> list[bool]:
    """Return which of the promises were kept for a fault."""
    own = [each for each in seen.of(fault) if each.name == "test_fault"]
    others = [each for each in seen.of(fault) if each.name != "test_fault"]
    said = set().union(*(each.said for each in own)) or {"passed"}
    words = "\n".join(each.words for each in own)
    return [
        bool(own) and said == {fault.outcome} and (not METHODS[method].ours or fault.word in words),
        sorted(each.name for each in others) == ["test_after", "test_before"]
        and not any(each.said for each in others),
        any(said_by(fault) in each.output for each in own),
        not any(each.fault in (fault.name, "") for each in seen.left),
        seen.ended and bool(own) and sum(each.seconds for each in own) < _ALONE,
    ]


def said_by(fault: Fault) -> str:
    """Return what a fault has printed before it begins."""
    return f"said-{fault.name}."


def measure(
    faults: Sequence[Fault], method: str, xdist: bool, folder: Path
) -> dict[str, list[bool]]:
    """Run these faults in one session, or in more where that says too little; judge each."""
    seen = run(faults, method, xdist, Path(tempfile.mkdtemp(dir=folder)))
    names = {(each.file, each.name) for each in seen.cases}
    whole = seen.ended and len(names) == _TESTS * len(faults)
    if len(faults) == 1 or (whole and all(each.fault for each in seen.left)):
        return {each.name: judge(each, method, seen) for each in faults}
    half = len(faults) // 2
    return {
        **measure(faults[:half], method, xdist, folder),
        **measure(faults[half:], method, xdist, folder),
    }


def run(faults: Sequence[Fault], method: str, xdist: bool, folder: Path) -> Seen:
    """Run one session in an empty folder, and end what it left."""
    session, tests, temporary = uuid.uuid4().hex[:8], folder / "tests", folder / "t"
    tests.mkdir()
    temporary.mkdir()
    for fault in faults:
        write(fault, METHODS[method].helper, tests, session)
    (tests / "pytest.ini").write_text("[pytest]\njunit_logging = all\n", encoding="utf-8")
    report = folder / "report.xml"
    arguments = [
        *("-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(tests)),
        *METHODS[method].arguments,
        *(XDIST if xdist else ()),
    ]
    with tempfile.TemporaryDirectory(prefix=f"faults-{os.getpid()}-", dir="/dev/shm") as shared:
        command = [*_with_shared_memory(shared), sys.executable, "-m", "pytest", *arguments]
        with open(folder / "output", "wb") as output:
            process = subprocess.Popen(
                command,
                cwd=tests,
                env=_environment(session, temporary),
                preexec_fn=_by_itself,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        noted = functools.partial(_noted, tests, faults)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ALONE + _EACH_MORE * (len(faults) - 1))
            ended = process.poll() is not None
            left = [
                *(_left(session, noted) if ended else ()),
                *_shared_memory(Path(shared), session),
                *(Left(each.name) for each in temporary.iterdir() if not _is_pytests(each)),
            ]
        finally:
            _end([process.pid, *_running(session, noted)])
            process.wait()
    return Seen(cases(report, tests), ended, left)


def write(fault: Fault, helper: str, folder: Path, session: str) -> None:
    """Write the file of a fault."""
    print_it = f'    print("said", "{fault.name}.", sep="-", flush=True)\n'
    parts = dict.fromkeys(("setup", "call", "teardown"), "    pass\n")
    parts[fault.where] = print_it + textwrap.indent(fault.body, "    ") + "\n"
    decorate = f"@fault_helpers.{helper}\n" if helper else ""
    text = f"""\
import ctypes, os, signal, subprocess, sys, tempfile, threading, time
{"import fault_helpers" if helper else ""}
import pytest

NOTES = {str(folder / f"{fault.name}.pids")!r}
SHARED = "{session}-{fault.name}"

def note(pid):
    with open(NOTES, "a") as file:
        file.write(str(pid) + chr(10))

@pytest.fixture
def around():
{parts["setup"]}    yield
{parts["teardown"]}
def test_before(): pass

{decorate}def test_fault(around):
{parts["call"]}
def test_after(): pass
"""
    (folder / f"test_{fault.name}.py").write_text(text, encoding="utf-8")


def cases(report: Path, tests: Path) -> list[Case]:
    """Return the tests of a JUnit report; none if there is no whole one."""
    try:
        found = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return []
    return [_case(each, tests) for each in found]


def _case(element: ElementTree.Element, tests: Path) -> Case:
    """Read one test; what a report shows of the test's source are no words of the report."""
    kinds = {"failure": "failed", "error": "error", "skipped": "skipped"}
    file = element.get("classname", "").rpartition(".")[2]
    source: set[str] = set()
    with contextlib.suppress(OSError):
        source = {line.strip() for line in (tests / f"{file}.py").read_text().splitlines()}
    ends = [each for each in element if each.tag in kinds]
    lines = [line for each in ends for line in (each.text or "").splitlines()]
    shown = [line for line in lines if line.lstrip("> ").strip() not in source]
    return Case(
        file,
        element.get("name", ""),
        frozenset(kinds[each.tag] for each in ends),
        "\n".join([*(each.get("message", "") for each in ends), *shown]),
        "".join(each.text or "" for each in element if each.tag.startswith("system-"))
        + "\n".join(shown),
        float(element.get("time", "0")),
    )


def _environment(session: str, temporary: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    paths = os.pathsep.join([str(_HERE.parent), str(_HERE)])
    return {
        **kept,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": paths,
        "TMPDIR": str(temporary),
        SESSION: session,
    }


def _with_shared_memory(folder: str) -> list[str]:
    """Return what gives a command a folder as its ``/dev/shm``; nothing where that can't be."""
    if not mounts_are_allowed():
        return []
    return ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"', folder]


@functools.cache
def mounts_are_allowed() -> bool:
    """Whether this process may have mounts of its own."""
    with contextlib.suppress(OSError):
        command = ["unshare", "-m", "mount", "--bind", "/dev/shm", "/dev/shm"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


def _shared_memory(own: Path, session: str) -> Iterator[Left]:
    """Yield each piece of shared memory, with the fault that has named it, and remove that."""
    named = f"{session}-"
    for each in (*own.iterdir(), *own.parent.glob(f"{named}*")):
        if each.name.startswith(named):
            yield Left("shared memory", each.name.removeprefix(named))
            each.unlink()
        else:
            yield Left(f"shared memory {each.name}")


def _is_pytests(path: Path) -> bool:
    """Whether pytest itself keeps it: the temporary directories of the last sessions."""
    return path.name.startswith("pytest-of-")


def _noted(tests: Path, faults: Sequence[Fault]) -> dict[int, str]:
    """Return the processes that faults have noted down."""
    notes = {fault.name: tests / f"{fault.name}.pids" for fault in faults}
    return {
        int(pid): name
        for name, path in notes.items()
        if path.exists()
        for pid in path.read_text(encoding="utf-8").split()
    }


def _left(session: str, noted: Callable[[], Mapping[int, str]]) -> list[Left]:
    """Return the processes that still run some seconds after the session."""
    end = time.monotonic() + _TO_END
    while (running := _running(session, noted)) and time.monotonic() < end:
        time.sleep(0.05)
    return [Left(f"process {pid}", name) for pid, name in running.items()]


def _running(session: str, noted: Callable[[], Mapping[int, str]]) -> dict[int, str]:
    """Return the session's processes, and the faults that they belong to."""
    found = dict.fromkeys(_marked(session), "")
    return found | {pid: name for pid, name in noted().items() if _runs(pid)}


def _marked(session: str) -> Iterator[int]:
    """Yield the processes of a session that have its variable."""
    variable = f"{SESSION}={session}".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            if variable in (entry / "environ").read_bytes().split(b"\0") and _runs(pid):
                yield pid


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _by_itself() -> None:
    """Begin a session as from a terminal, with a group of its own, as some faults kill theirs."""
    os.setpgrp()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):  # nohup and "&" ignore them
        signal.signal(number, signal.SIG_DFL)


def _end(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
