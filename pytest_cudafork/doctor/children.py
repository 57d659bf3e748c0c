"""The doctor's children: fresh interpreters under the watch, as nothing is imported in the doctor.

What they did with CUDA is in the result; what they found out is in a file of theirs.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from pytest_cudafork.errors import CudaForkWarning, ScriptTimeout
from pytest_cudafork.programs.result import ScriptResult
from pytest_cudafork.programs.run_script import run_script

_CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child")


class Answer(NamedTuple):
    """What a child found out.

    Attributes:
        report: What it wrote; None: it did not come so far.
        result: What it did; None: it could not be run.
        why: Where there is no report: why, in words.

    """

    report: Any
    result: ScriptResult | None
    why: str = ""


def ask(script: str, *arguments: str, timeout: float, told: Any = None) -> Answer:
    """Run a script of ``child/`` with these arguments and a file for its report.

    Args:
        script: Its name.
        *arguments: What comes before the report's path.
        timeout: Seconds after which it is ended.
        told: What it finds on its standard input, as JSON.

    """
    try:
        with tempfile.TemporaryDirectory(
            prefix="pytest-cudafork-doctor-", ignore_cleanup_errors=True
        ) as folder:
            path = os.path.join(folder, "report.json")
            return _ask(script, arguments, path, timeout, json.dumps(told))
    except OSError as error:
        return Answer(None, None, str(error))


def _ask(script: str, arguments: Sequence[str], path: str, timeout: float, told: str) -> Answer:
    """Run a script that writes its report to a path.

    Raises:
        OSError: It cannot be run.

    """
    try:
        with warnings.catch_warnings():
            # said by the result's `unseen` as well, which the doctor tells
            warnings.simplefilter("ignore", CudaForkWarning)
            result = run_script(
                os.path.join(_CHILD, script),
                *arguments,
                path,
                method=None,
                timeout=timeout,
                stdin=told,
                allow_findings=True,
            )
    except ScriptTimeout as error:
        return Answer(None, error.result, f"it did not end within {timeout:g} s")
    try:
        with open(path, encoding="utf-8") as file:
            return Answer(json.load(file), result)
    except (OSError, ValueError):
        said = (result.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return Answer(None, result, f"{result.summary.splitlines()[0]}; {said}")
