"""Runs static analysers over the package, and compares what they find with what is explained.

bandit reads the Python code; gcc's analyser, clang-tidy and cppcheck the C code. What they say must
be in ``security_findings.toml``, with the reason why nothing is to be mended, as often as there: a
new finding fails, and so does an explanation that is about nothing any more. ``make security`` runs
it in an environment that has the analysers.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "pytest_cudafork"
NATIVE = Path(PACKAGE, "observe", "driver", "native")
EXPLAINED = Path(__file__).with_name("security_findings.toml")

Finding = tuple[str, str, str]
"""Tool, rule and file."""

_UNPATCHED = re.compile(rf"\bfrom {PACKAGE}\.compat\.unpatched import (\([^)]*\)|[^(\n]*)")
_WARNING = re.compile(r"^([^:\n]+):\d+:\d+: warning: .*\[-?W?([\w.,=-]+)\]$", re.MULTILINE)


def main() -> int:
    """Run the analysers; exit status 1 if they say something else than is explained."""
    explained = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))
    found = (
        bandit(explained["bandit_without"])
        + gcc()
        + clang_tidy(explained["clang_tidy_without"])
        + cppcheck()
    )
    wrong = differences(found, explained["finding"])
    print("\n".join(wrong or [f"security: {found.total()} findings, each explained"]))
    return 1 if wrong else 0


def differences(found: Mapping[Finding, int], explained: list[dict[str, Any]]) -> list[str]:
    """Return what was found and is not explained, and what is explained and was not found."""
    known = Counter[Finding]()
    for row in explained:
        known[row["tool"], row["rule"], row["file"]] += row.get("times", 1)
    return [
        f"{' '.join(each)}: {found.get(each, 0)} found, {known[each]} explained"
        for each in sorted(found.keys() | known.keys())
        if found.get(each, 0) != known[each]
    ]


def bandit(without: Mapping[str, str]) -> Counter[Finding]:
    """Return what bandit says of the package's Python code, but for rules that are left out."""
    command = [_tool("bandit"), "-q", "-r", PACKAGE, "-f", "json", "-s", ",".join(without)]
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted((ROOT / PACKAGE).rglob("*.py")):
            copy = Path(folder, file.relative_to(ROOT))
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = with_plain_imports(file.read_text(encoding="utf-8"))
            copy.write_text(text, encoding="utf-8")
        results = json.loads(_output(command, folder))["results"]
    return Counter(("bandit", each["test_id"], _relative(each["filename"])) for each in results)


def with_plain_imports(text: str) -> str:
    """Return code with the standard library imported by its own names, line by line as it was.

    An analyser knows ``pickle.loads``, and not what ``compat.unpatched`` has under that name.
    """

    def plain(match: re.Match[str]) -> str:
        names = re.findall(r"\w+", re.sub(r"#.*", "", match[1]))
        return f"import {', '.join(names)}" + "\n" * match[0].count("\n")

    return _UNPATCHED.sub(plain, text)


def gcc() -> Counter[Finding]:
    """Return what gcc and its analyser say of the C code."""
    flags = ["-fanalyzer", "-Wall", "-Wextra", "-O1", "-fPIC", "-c", "-o", "/dev/null"]
    return _warnings("gcc", lambda file: [_tool("gcc"), *flags, *_includes(), file])


def clang_tidy(without: Mapping[str, str]) -> Counter[Finding]:
    """Return what clang-tidy says of the C code, but for checks that are left out as a whole."""
    checks = ",".join(
        ["-*", "clang-analyzer-*", "bugprone-*", "cert-*", *(f"-{c}" for c in without)]
    )
    options = ["--quiet", f"--checks={checks}"]
    return _warnings(
        "clang-tidy", lambda file: [_tool("clang-tidy"), *options, file, "--", *_includes()]
    )


def cppcheck() -> Counter[Finding]:
    """Return what cppcheck says of the C code."""
    template = "--template={file}:{line}:{column}: warning: {message} [{id}]"
    options = ["--quiet", "--enable=warning,portability", template]
    return _warnings("cppcheck", lambda file: [_tool("cppcheck"), *options, file])


def _warnings(tool: str, command: Any) -> Counter[Finding]:
    found: set[tuple[str, str, str, str]] = set()
    for file in sorted((ROOT / NATIVE).glob("*.c")):
        for match in _WARNING.finditer(_output(command(str(file)))):
            place = match[0].partition(" warning: ")[0]  # a header is read by many
            found.add((tool, match[2].partition(",")[0], _relative(match[1]), place))
    return Counter(each[:3] for each in found)


def _includes() -> list[str]:
    return [f"-I{ROOT / NATIVE}", f"-I{sysconfig.get_paths()['include']}"]


def _relative(file: str) -> str:
    path = (ROOT / file).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def _tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise SystemExit(f"there is no {name} here: make security sets up an environment with it")
    return found


def _output(command: list[str], folder: str | Path = ROOT) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + (done.stderr if command[0].endswith(("gcc", "cppcheck")) else "")


if __name__ == "__main__":
    sys.exit(main())
