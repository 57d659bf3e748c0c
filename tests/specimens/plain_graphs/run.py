"""Runs the plain graph programs in sessions of their own."""

from __future__ import annotations

import os
import sys
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
_FOREIGN = ("PYTEST_", "_CUDAFORK_", "CUDA_", "COV_CORE_")


def lay_out(which: str, folder: Path) -> None:
    """Write the programs in one form into a folder, and what keeps pytest in it."""
    form(which).copy_to(folder)
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")


def run_session(folder: Path, backend: str, *args: str) -> tuple[dict[str, str], str]:
    """Run a session in a folder.

    Returns:
        What its JUnit report says of each test, "" of one that passed; and its output.

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
        "OMP_NUM_THREADS": "1",
    }
    done = interpreters.run(command, cwd=folder, env=environment, merge=True, timeout=TIME_LIMIT)
    told = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [each for each in case if each.tag in ("failure", "error", "skipped")]
        told[case.get("name", "")] = "\n".join(each.text or each.tag for each in bad)
    return told, done.stdout


def wrong_answers(which: str, backend: str, names: list[str], folder: Path) -> set[str]:
    """Return the programs whose answers are not those of eager code, or that raise."""
    lay_out(which, folder)
    oracle = folder / "test_the_oracle.py"
    oracle.write_text(ORACLE.replace("{names!r}", repr(names)), encoding="utf-8")
    told, output = run_session(folder, backend, oracle.name)
    assert len(told) == len(names), output
    return {name for name in names if told[f"test_oracle[{name}]"]}
