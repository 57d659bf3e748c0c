"""Makes the table of what pytest-cudafork works with: docs/reference/compatibility.md.

Builds the wheel, and for each row makes an environment with the wheel and what the row names, and
runs a small suite in it twice: as it is, and with every test in a process of its own. A row works
if each test of both sessions has the outcome that it must have, the fork that is refused is told
with its line, and the other plugin wrote what it writes. What could not be installed is untried,
with the reason.

    python tools/compatibility.py                       # all rows; some minutes
    python tools/compatibility.py --only timeout "pytest 9.1"
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from tools.check_wheel import WheelError, build, run  # noqa: E402

SUITE = PROJECT / "tools" / "compatibility_project" / "test_small.py"
PAGE = PROJECT / "docs" / "reference" / "compatibility.md"
BEGIN, END = "<!-- Written by `python tools/compatibility.py`. -->", "<!-- end of the table -->"
NEWEST = "pytest==9.2.*"
SECONDS = 300
"""How long one session may take; one takes a few seconds."""

OUTCOMES = Counter(passed=7, skipped=2, failed=2)
"""What the suite comes to in JUnit's words, in which an expected failure is a skip."""


@dataclass(frozen=True)
class Row:
    """One line of the table: what is installed beside the wheel, and what has to come of it."""

    name: str
    packages: tuple[str, ...]
    args: tuple[str, ...] = ()
    writes: str = ""
    """A file, or a pattern of files, that the other plugin has to write."""
    extra: str = ""
    """Tests that use the other plugin, added to the suite; all of them pass."""
    passes: int = 0
    """How many those are."""
    times: int = 1
    """How often the plugin runs each test."""
    python: str = ""
    """The interpreter; "": the one that runs this."""


def plugin(name: str, *args: str, **more: object) -> Row:
    """Return the row of a plugin of pytest: its distribution, and how it is switched on."""
    packages = (NEWEST, name)
    return Row(name, packages, args, **more)  # type: ignore[arg-type]


ASYNC = "\n\n@pytest.mark.{0}\nasync def test_async():\n    assert double(1) == 2\n"
BENCHMARK = """

def test_bench(benchmark):
    assert benchmark.pedantic(double, args=(1,)) == 2
"""
SUBTESTS = """

def test_sub(subtests):
    with subtests.test('a'):
        assert double(1) == 2
"""
PROPERTY = """

from hypothesis import given, strategies


@given(strategies.integers())
def test_property(number):
    assert double(number) == 2 * number
"""
ORDERED = """

@pytest.mark.order(after="test_first")
def test_second():
    assert double(2) == 4


def test_first():
    assert double(1) == 2
"""
STEPS = """

from pytest_steps import test_steps


@test_steps("one", "two")
def test_with_steps():
    number = double(1)
    yield
    assert number == 2
    yield
"""
LOWEST = (
    "pytest==7.4.0",
    "cloudpickle==3.0.0",
    "filelock==3.15.1",
    "pluggy==1.3.0",
    "tomli-w==1.0.0",
)

ROWS = (
    *(
        Row(f"pytest {release}", (f"pytest=={release}.*",))
        for release in ("7.4", "8.4", "9.1", "9.2")
    ),
    Row("the lowest releases allowed", LOWEST),
    *(
        Row(f"Python {release}", (NEWEST,), python=f"python{release}")
        for release in ("3.10", "3.11", "3.12", "3.13", "3.14")
    ),
    Row("torch", (NEWEST, "torch==2.13.*")),
    plugin("pytest-xdist", "-n", "2"),
    plugin("pytest-forked"),
    plugin("pytest-timeout", "--timeout=120"),
    Row(
        "pytest-cov",
        (NEWEST, "pytest-cov", "coverage"),
        ("--cov=test_small", "--cov-report=json:cov.json"),
        writes="cov.json",
    ),
    plugin("pytest-rerunfailures", "--reruns=1"),
    plugin("pytest-randomly"),
    plugin("pytest-asyncio", extra=ASYNC.format("asyncio"), passes=1),
    Row("anyio", (NEWEST, "anyio", "trio"), extra=ASYNC.format("anyio"), passes=2),
    plugin("pytest-trio", extra=ASYNC.format("trio"), passes=1),
    plugin(
        "pytest-benchmark",
        "--benchmark-json=bench.json",
        writes="bench.json",
        extra=BENCHMARK,
        passes=1,
    ),
    plugin("pytest-html", "--html=report.html", "--self-contained-html", writes="report.html"),
    plugin("pytest-json-report", "--json-report", writes=".report.json"),
    plugin("pytest-reportlog", "--report-log=log.jsonl", writes="log.jsonl"),
    plugin("allure-pytest", "--alluredir=allure", writes="allure/*-result.json"),
    plugin("pytest-sugar"),
    plugin("pytest-instafail", "--instafail"),
    Row(
        "pytest-subtests",
        ("pytest==8.4.*", "pytest-subtests"),
        extra=SUBTESTS,
        passes=1,
    ),
    plugin("pytest-memray", "--memray"),
    Row(
        "hypothesis",
        (NEWEST, "hypothesis"),
        extra=PROPERTY,
        passes=1,
    ),
    plugin("pytest-flakefinder", "--flake-finder", "--flake-runs=2", times=2),
    plugin("pytest-repeat", "--count=2", times=2),
    plugin("pytest-order", extra=ORDERED, passes=2),
    plugin("pytest-steps", extra=STEPS, passes=2),
)


@dataclass
class Verdict:
    """What became of a row: a word for each session, what was installed, and what was wrong."""

    row: Row
    plain: str = "untried"
    isolated: str = "untried"
    versions: dict[str, str] = field(default_factory=dict)
    why: str = ""


def interpreter(name: str) -> Path | None:
    """Return the interpreter of a row; None where there is none that works."""
    if not name:
        return Path(sys.executable)
    found = [shutil.which(name)]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    release = name.removeprefix("python")
    found += [str(path) for path in sorted(versions.glob(f"{release}.*/bin/{name}"))]
    for path in filter(None, found):
        asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == release:
            return Path(path)
    return None


def installed(row: Row, wheel: Path, folder: Path) -> tuple[Path, dict[str, str]]:
    """Make the environment of a row; return its Python, and the versions in it.

    Raises:
        WheelError: it cannot be made; pip says why.

    """
    base = interpreter(row.python)
    if base is None:
        raise WheelError(f"no {row.python} on this machine")
    run(base, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", *quiet, "--only-binary=:all:", wheel, *row.packages, cwd=folder.parent)
    listed = run(*pip, "list", "--format=json", "--disable-pip-version-check", cwd=folder.parent)
    rows = json.loads(listed[listed.index("[{") : listed.rindex("]") + 1])
    return python, {each["name"].lower(): each["version"] for each in rows}


def outcomes(junit: Path) -> Counter[str]:
    """Count the outcomes in a JUnit file; a failed set-up or teardown counts as failed.

    A test that was run again has several entries there, of which the last one counts.
    """
    found: dict[tuple[str | None, str | None], str] = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        children = {child.tag for child in case}
        word = "failed" if children & {"failure", "error"} else "passed"
        found[case.get("classname"), case.get("name")] = (
            "skipped" if "skipped" in children else word
        )
    return Counter(found.values())


def session(row: Row, python: Path, folder: Path, *more: str) -> str:
    """Run the suite once; return what is wrong, or ""."""
    folder.mkdir()
    suite = folder / "test_small.py"
    suite.write_text(SUITE.read_text(encoding="utf-8") + row.extra, encoding="utf-8")
    # The folder is a project of its own, whatever lies above it.
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    args = ("--cuda-fork-check", "--cuda-fork-device=phantom", "--junitxml=junit.xml")
    command: tuple[str | Path, ...] = (
        python,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        *args,
        *row.args,
        *more,
    )
    try:
        said = run("timeout", str(SECONDS), *command, cwd=folder, ok=(1,))
    except WheelError as error:
        return f"{str(error)[-1500:]}"
    expected = Counter({word: row.times * count for word, count in OUTCOMES.items()})
    expected["passed"] += row.times * row.passes
    counted = outcomes(folder / "junit.xml")
    if counted != expected:
        return f"{dict(counted)} instead of {dict(expected)}:\n{said[-1500:]}"
    culprit = r"test_small\.py:\d+ in test_a_fork_after_cuda"
    for pattern in ("fork refused", culprit, "SIGKILL", r"cuInit\(0\)"):
        if not re.search(pattern, said):
            return f"{pattern!r} is not in the output:\n{said[-1500:]}"
    if "INTERNALERROR" in said:
        return f"an internal error:\n{said[-1500:]}"
    if row.writes and not any(path.stat().st_size for path in folder.glob(row.writes)):
        return f"{row.writes} was not written"
    return ""


def judge(row: Row, wheel: Path, scratch: Path) -> Verdict:
    """Try one row."""
    folder = scratch / re.sub(r"\W+", "-", row.name)
    folder.mkdir()
    try:
        python, versions = installed(row, wheel, folder / "venv")
    except WheelError as error:
        reasons = re.findall(r"ERROR: (.+)", str(error)) or [str(error)]
        return Verdict(row, why=reasons[-1].strip())
    wrong = {
        "plain": session(row, python, folder / "plain"),
        "isolated": session(row, python, folder / "isolated", "--cuda-fork-isolate=forkserver"),
    }
    shutil.rmtree(folder / "venv")
    words = {name: "does not work" if what else "works" for name, what in wrong.items()}
    return Verdict(row, **words, versions=versions, why=wrong["plain"] or wrong["isolated"])


def shown(verdict: Verdict, day: str = "") -> str:
    """Return a row's line in the table; ``day`` is when it was tried."""
    names = {re.split(r"[=<>]", package)[0].lower() for package in verdict.row.packages}
    versions = ", ".join(f"{n} {v}" for n, v in verdict.versions.items() if n in names)
    remark = verdict.why.splitlines()[0][:120] if verdict.why else ""
    words = f"{verdict.plain} | {verdict.isolated}"
    return f"| {verdict.row.name} | {words} | {versions or '-'} | {day or '-'} | {remark} |"


def table(verdicts: list[Verdict], old: str) -> str:
    """Return what stands between the marks; rows not tried now keep what they had, and its day."""
    lines = {line.split("|")[1].strip(): line for line in re.findall(r"^\| .+$", old, re.M)}
    today = str(datetime.datetime.now(tz=datetime.timezone.utc).date())
    for verdict in verdicts:
        lines[verdict.row.name] = shown(verdict, today if verdict.versions else "")
    head = ["| with | as it is | every test isolated | tried | on | remark |"]
    body = [lines.get(row.name, shown(Verdict(row))) for row in ROWS]
    return "\n".join([BEGIN, "", *head, "|---|---|---|---|---|---|", *body, "", END])


def write(verdicts: list[Verdict]) -> None:
    """Write the table into its page."""
    text = PAGE.read_text(encoding="utf-8")
    old = text[text.index(BEGIN) : text.index(END) + len(END)]
    PAGE.write_text(text.replace(old, table(verdicts, old)), encoding="utf-8")


def main() -> int:
    """Try the rows and write the table; the exit status is 1 if something does not work."""
    parser = argparse.ArgumentParser(description="Make the table of what works together.")
    parser.add_argument("--only", nargs="+", default=[], help="rows whose name has one of these")
    parser.add_argument("--wheel", type=Path, help="this wheel, instead of one that is built")
    options = parser.parse_args()
    rows = [row for row in ROWS if any(o in row.name for o in options.only or [""])]
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="compatibility-") as name:
        scratch = Path(name)
        wheel = options.wheel.resolve() if options.wheel else build(scratch)
        for row in rows:
            verdicts.append(verdict := judge(row, wheel, scratch))
            print(f"{row.name}: {verdict.plain}, {verdict.isolated}  {verdict.why}", flush=True)
            write([verdict])  # at once: a run that is stopped keeps what it has tried
    return int(any("does not work" in (each.plain, each.isolated) for each in verdicts))


if __name__ == "__main__":
    sys.exit(main())
