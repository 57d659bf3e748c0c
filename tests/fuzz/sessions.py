"""Sessions of random tests and options, some ended by a signal: ``python -m tests.fuzz.sessions``.

Every test runs in a process of its own, or of its group. Each session must end, with pytest's own
summary and exit status, each of its tests must have the outcome that is written beside it in
``KINDS``, and no process may be left. A session that fails is printed with its seed, which makes
the same one again (``--seed``), with its files, its output, and the stacks of what hangs if py-spy
is installed; the exit status is 1.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from arguments import at_least
from results_file import parser, publish, table

from pytest_cudafork.process.native_stacks import python_stacks
from tests.support.marked_processes import marked_processes

MARK = "FUZZED_SESSION"
"""A variable by which the processes of one session are found."""
JUNIT = "junit.xml"
LEFT_SECONDS = 15.0
"""How long a machine that is busy may take to end what a session has ended."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


@dataclass(frozen=True)
class Kind:
    """What a test does, and what becomes of it; ``alone``: it would end or disturb its group."""

    body: str
    outcome: str = "passed"
    alone: bool = False


KINDS = {
    "passes": Kind("pass"),
    "fails": Kind("assert 0, 'no'", "failed"),
    "skips": Kind("pytest.skip('no')", "skipped"),
    "xfails": Kind("pytest.xfail('no')", "xfailed"),
    "prints": Kind("print('x' * 300_000)"),
    "warns": Kind("warnings.warn('something')"),
    "sleeps": Kind("time.sleep(random.random() / 5)"),
    "needs_memory": Kind("assert len(bytearray(30_000_000))"),
    "exits": Kind("os._exit(3)", "failed", alone=True),
    "raises_system_exit": Kind("raise SystemExit(2)", "failed", alone=True),
    "is_killed": Kind("os.kill(os.getpid(), signal.SIGKILL)", "failed", alone=True),
    "is_hit": Kind("signal.raise_signal(signal.SIGSEGV)", "failed", alone=True),
    "leaves_a_thread": Kind("threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"),
    "leaves_a_daemon": Kind(
        "subprocess.Popen(['sleep', '600'], start_new_session=True)", alone=True
    ),
    "leaves_a_child": Kind("subprocess.Popen(['sleep', '600'])", alone=True),
    "leaves_a_fork": Kind("os.fork() or time.sleep(600)", alone=True),
    "closes_descriptors": Kind("os.closerange(3, 300)", "", alone=True),
}
"""No outcome: any."""
_HEAD = """\
import os, random, signal, subprocess, threading, time, warnings

import pytest

@pytest.fixture(scope="module")
def of_module():
    yield 1

@pytest.fixture
def of_test(tmp_path):
    yield 2
"""
_GROUP = 'pytestmark = pytest.mark.cuda_isolated(scope="module")\n'


@dataclass(frozen=True)
class Session:
    """One session that is to be run.

    Attributes:
        seed: what it was drawn from.
        files: contents by name.
        outcomes: what must become of each test, by ``file::name``.
        options: those of pytest.
        ends_by: a signal that it gets, and after how many seconds; None: it ends by itself.

    """

    seed: int
    files: dict[str, str]
    outcomes: dict[str, str]
    options: tuple[str, ...]
    ends_by: tuple[signal.Signals, float] | None = None

    @property
    def stops_early(self) -> bool:
        """Whether pytest ends it after some failures."""
        return any(each.startswith(("-x", "--maxfail")) for each in self.options)


@dataclass(frozen=True)
class Ended:
    """What became of a session.

    Attributes:
        status: the exit status of pytest; None: it had not ended in time.
        output: what it wrote.
        outcomes: what became of each test, by ``file::name``; empty where it wrote no report.
        left: the processes that were still there, a line each.
        was_hit: whether it got its signal.
        stacks: of what hangs.

    """

    status: int | None
    output: str
    outcomes: dict[str, str]
    left: tuple[str, ...] = ()
    was_hit: bool = False
    stacks: str = ""


def draw(seed: int) -> Session:
    """Return the session of a seed."""
    chance = random.Random(seed)
    files: dict[str, str] = {}
    outcomes: dict[str, str] = {}
    for number in range(chance.randint(1, 3)):
        in_group = chance.random() < 0.2
        may_be = [name for name, kind in KINDS.items() if not (in_group and kind.alone)]
        lines = [_HEAD, _GROUP] if in_group else [_HEAD]
        for place in range(chance.randint(1, 7)):
            kind = chance.choice(may_be) if chance.random() < 0.6 else "passes"
            name = f"test_{place}_{kind}"
            fixtures = chance.choice(("", "of_module", "of_test", "of_module, of_test"))
            mark = "@pytest.mark.spawn_only\n" if chance.random() < 0.05 and not in_group else ""
            lines.append(f"{mark}def {name}({fixtures}):\n    {KINDS[kind].body}\n")
            outcomes[f"test_{number}::{name}"] = KINDS[kind].outcome
        files[f"test_{number}.py"] = "\n".join(lines)
    method = chance.choice(("auto", "auto", "fork", "forkserver"))
    options = [f"--cuda-fork-isolate={method}", *chance.choice(((), (), ("-x",), ("--maxfail=2",)))]
    for option, often in (
        ("--cuda-fork-check", 0.35),
        ("-n2", 0.2),
        ("-s", 0.2),
        ("-v", 0.5),
        ("--cuda-fork-isolate-timeout=60", 0.1),
    ):
        if chance.random() < often:
            options.append(option)
    hit = chance.random() < 0.4
    ends_by = (chance.choice(_SIGNALS), chance.uniform(0.2, 2.5)) if hit else None
    return Session(seed, files, outcomes, tuple(options), ends_by)


def run(session: Session, folder: Path, limit: float) -> Ended:
    """Run a session in a folder; after ``limit`` seconds it is taken for one that hangs."""
    for name, text in session.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    mark = uuid.uuid4().hex
    words = ["-p", "no:cacheprovider", f"--junitxml={JUNIT}", *session.options]
    with open(folder / "output", "w+", encoding="utf-8", errors="replace") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "pytest", *words],
            cwd=folder,
            env={**os.environ, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        was_hit = session.ends_by is not None and _hit(child, *session.ends_by)
        try:
            status: int | None = child.wait(limit)
            left = _wait_for_the_end(f"{MARK}={mark}")
        except subprocess.TimeoutExpired:
            status, left = None, marked_processes(f"{MARK}={mark}")
        stacks = "\n".join(f"{pid} {command}\n{_stacks(pid)}" for pid, command in left.items())
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.wait()
        output.seek(0)
        told = tuple(left.values())
        return Ended(status, output.read(), _outcomes(folder / JUNIT), told, was_hit, stacks)


def judge(session: Session, ended: Ended) -> list[str]:
    """Return what is wrong with how a session ended."""
    found = []
    if ended.status is None:
        return ["it hangs"]
    if ended.left:
        found.append(f"processes are left: {', '.join(ended.left)}")
    if "INTERNALERROR" in ended.output:
        found.append("an internal error")
    if ended.was_hit:
        return found
    if ended.status not in (0, 1, 2):
        found.append(f"it ended with {ended.status}")
    if not ended.outcomes:
        found.append("it wrote no report")
    elif not session.stops_early:
        lost = [name for name in session.outcomes if name not in ended.outcomes]
        found += [f"{name} was lost" for name in lost]
    for name, outcome in ended.outcomes.items():
        wanted = session.outcomes.get(name, "no test")
        if wanted and outcome != wanted:
            found.append(f"{name}: {outcome}, not {wanted}")
    return found


def _hit(child: subprocess.Popen[bytes], number: signal.Signals, after: float) -> bool:
    """Send a signal after some seconds; return whether there was anybody to send it to."""
    try:
        child.wait(after)
    except subprocess.TimeoutExpired:
        child.send_signal(number)
        return True
    return False


def _outcomes(report: Path) -> dict[str, str]:
    try:
        cases = ET.parse(report).getroot().iter("testcase")
        return {f"{each.get('classname')}::{each.get('name')}": _outcome(each) for each in cases}
    except (OSError, ET.ParseError):
        return {}


def _outcome(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "xfailed" if skipped.get("type") == "pytest.xfail" else "skipped"


def _wait_for_the_end(mark: str) -> dict[int, str]:
    """Return the processes of a session that do not end, with their commands."""
    until = time.monotonic() + LEFT_SECONDS
    while (left := marked_processes(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _stacks(pid: int) -> str:
    """Return where the threads of a process are, or why that is not known."""
    stacks, why_not = python_stacks(pid)
    return why_not or "\n".join("\n  ".join((each.name, *each.frames)) for each in stacks)


def _try(seed: int, limit: float) -> str:
    """Run the session of a seed; return what is wrong with it, for who reads it."""
    session, folder = draw(seed), Path(tempfile.mkdtemp(prefix="fuzzed-session-"))
    try:
        ended = run(session, folder, limit)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wrong = judge(session, ended)
    if not wrong:
        return ""
    files = "\n".join(f"# {name}\n{text}" for name, text in session.files.items())
    how = f"{' '.join(session.options)}; signal: {session.ends_by if ended.was_hit else None}"
    return "\n".join([f"seed {seed}: {how}", *wrong, files, ended.output[-6000:], ended.stacks])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run sessions for some seconds."""
    made = parser("Whole sessions of random tests, options and ends.")
    made.add_argument("--seconds", type=at_least(1), default=60, help="default 60")
    made.add_argument("--at-once", type=at_least(1), default=2, help="sessions; default 2")
    made.add_argument("--limit", type=at_least(1), default=120, help="seconds a session may take")
    made.add_argument("--seed", type=int, help="run this session, and no other")
    options = made.parse_args(arguments)
    began = time.monotonic()
    first = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed

    def follow(number: int) -> tuple[int, int]:
        done = failed = 0
        for seed in range(first + number * 10**6, first + (number + 1) * 10**6):
            wrong = _try(seed, options.limit)
            done, failed = done + 1, failed + bool(wrong)
            if wrong:
                sys.stdout.write(f"{wrong}\n")
                sys.stdout.flush()
            if options.seed is not None or time.monotonic() - began > options.seconds:
                break
        return done, failed

    at_once = options.at_once if options.seed is None else 1
    with ThreadPoolExecutor(at_once) as pool:
        counts = list(pool.map(follow, range(at_once)))
    sessions, failed = (sum(column) for column in zip(*counts, strict=True))
    seconds = round(time.monotonic() - began)
    data = {"sessions": sessions, "failed": failed, "at_once": at_once, "first_seed": first}
    text = table(
        ("sessions", "at once", "s", "failed"),
        [list(map(str, (sessions, at_once, seconds, failed)))],
    )
    publish("fuzz_sessions", "Sessions of random tests and ends", text, data, save=options.save)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
