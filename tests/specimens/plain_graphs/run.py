"""Runs the plain graph programs in sessions of their own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.specimens.plain_graphs.catalog import form
from tests.support import interpreters

TIME_LIMIT = 300
"""Seconds for one session; it takes some ten."""

OPTIONS = {
    "software": ("--cuda-fork-device=phantom:sm_90", "--cuda-fork-graphs=software"),
    "cuda": ("--cuda-fork-graphs=cuda",),
}
"""What makes ``"cuda"`` a device: a present face and the stand-ins for ``torch.cuda``, or a GPU."""

ORACLE = '''
import importlib

import pytest
import torch

NAMES = {names!r}


@pytest.mark.parametrize("name", NAMES)
def test_oracle(name):
    module = importlib.import_module("test_" + name)
    answers, expected = module.serve(), module.expected()
    assert len(answers) == len(expected)
    for answer, wanted in zip(answers, expected):
        torch.testing.assert_close(answer, wanted, rtol=1e-4, atol=1e-4)
'''
ONE_THREAD = "import torch\n\ntorch.set_num_threads(1)\n"
_FOREIGN = ("PYTEST_", "_CUDAFORK_", "CUDA_", "COV_CORE_")


def lay_out(which: str, folder: Path) -> None:
    """Write the programs in one form into a folder, and what keeps pytest in it.

    Their tensors are small: they are computed by one thread. A variable that says so would be read
    when an interpreter starts, and torch be imported anew.
    """
    form(which).copy_to(folder)
    (folder / "conftest.py").write_text(ONE_THREAD, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")


def run_session(folder: Path, backend: str, *args: str) -> tuple[dict[str, str], str]:
    """Run a session in a folder.

    Returns:
        What its JUnit report says of each case of the oracle, and of the test of each file, by
        their names; "" of one that passed. And its output.

    """
    report = folder / "report.xml"
    command = [
        *(sys.executable, "-m", "pytest", "-p", "pytest_cudafork.plugin", "-p", "no:cacheprovider"),
        *("--cuda-fork-check=poison", *OPTIONS[backend], f"--junitxml={report}", *args),
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    environment = {
        **kept,
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "COLUMNS": "200",
    }
    done = interpreters.run(command, cwd=folder, env=environment, merge=True, timeout=TIME_LIMIT)
    told = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [each for each in case if each.tag in ("failure", "error", "skipped")]
        name = case.get("name", "")
        if not name.startswith("test_oracle["):
            name = case.get("classname", "")  # of which each file has one test
        told[name] = "\n".join(each.text or each.tag for each in bad)
    return told, done.stdout


@dataclass(frozen=True)
class Told:
    """What a look at captures says of one program.

    ``fails`` is whether its test does, ``listed`` whether the section names one of its lines
    instead; ``text`` is what is said.
    """

    fails: bool
    listed: bool
    text: str

    def names(self, lines: Iterable[str]) -> bool:
        """Whether one of these lines, each as ``file:line``, is named."""
        return any(re.search(rf"\b{re.escape(line)}(?!\d)", self.text) for line in lines)


_FINDINGS = "in what this test captured and replayed"


def look_at_captures(which: str, backend: str, names: list[str], folder: Path) -> dict[str, Told]:
    """Run the tests of these programs with a look at their captures; return what it says."""
    lay_out(which, folder)
    return look_at_tests(backend, names, folder)


def look_at_tests(backend: str, names: list[str], folder: Path) -> dict[str, Told]:
    """Do that for the tests ``test_NAME.py`` that lie in a folder."""
    files = [f"test_{name}.py" for name in names]
    told, output = run_session(folder, backend, "-v", "--cuda-fork-captures=check", *files)
    section = output.partition(" captured graphs =")[2].partition("\n===")[0]
    found = {}
    for name in names:
        text = told[f"test_{name}"]
        about = [each for each in _findings_of(section) if f"test_{name}.py::" in each]
        fails = bool(text)
        if _FINDINGS in text:
            text = text.partition(_FINDINGS)[2]  # and not the traceback of whatever it raised
        found[name] = Told(fails, bool(about), "\n".join([text, *about]))
    return found


def _findings_of(section: str) -> list[str]:
    """Return the suspicions of the section, each with the tests that it was seen in."""
    return re.split(r"\n(?=\[)", section)[1:]


def wrong_answers(which: str, backend: str, names: list[str], folder: Path) -> set[str]:
    """Return the programs whose answers are not those of eager code, or that raise."""
    lay_out(which, folder)
    oracle = folder / "test_the_oracle.py"
    oracle.write_text(ORACLE.replace("{names!r}", repr(names)), encoding="utf-8")
    told, output = run_session(folder, backend, oracle.name)
    assert len(told) == len(names), output
    return {name for name in names if told[f"test_oracle[{name}]"]}
