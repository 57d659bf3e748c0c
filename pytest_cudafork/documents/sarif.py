"""SARIF 2.1.0, the format in which code scanning takes problems."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pytest_cudafork._version import version
from pytest_cudafork.documents.problem import RULES, Place, Problem
from pytest_cudafork.documents.writing import json_text, write_at_once

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT = "SRCROOT"


def write_sarif(
    path: str,
    problems: Iterable[Problem],
    root: str,
    *,
    successful: bool,
    trouble: Iterable[str] = (),
) -> None:
    """Write a SARIF file.

    Args:
        path: The file.
        problems: What was found.
        root: The project's folder, to which its files are relative.
        successful: Whether what looked for problems came to its end.
        trouble: What went wrong beside the problems, in words.

    Raises:
        OSError: It cannot be written.

    """
    log = sarif_log(problems, root, successful=successful, trouble=trouble)
    write_at_once(path, json_text(log))


def sarif_log(
    problems: Iterable[Problem], root: str, *, successful: bool, trouble: Iterable[str] = ()
) -> dict[str, Any]:
    """Return a SARIF log as plain data; the arguments are those of ``write_sarif``."""
    invocation: dict[str, Any] = {"executionSuccessful": successful}
    notes = [{"level": "error", "message": {"text": words}} for words in trouble]
    if notes:
        invocation["toolExecutionNotifications"] = notes
    names = list(RULES)
    rules = [
        {
            "id": name,
            "shortDescription": {"text": what},
            "help": {"text": advice},
            "defaultConfiguration": {"level": "error"},
        }
        for name, (what, advice) in RULES.items()
    ]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "pytest-cudafork",
                        "semanticVersion": _semantic(version),
                        "version": version,
                        "rules": rules,
                    }
                },
                "originalUriBaseIds": {_ROOT: {"uri": f"{Path(root).resolve().as_uri()}/"}},
                "invocations": [invocation],
                "columnKind": "unicodeCodePoints",
                "results": [_result(each, names.index(each.rule), root) for each in problems],
            }
        ],
    }


def _semantic(text: str) -> str:
    """Return the numbers of a version; SARIF's field takes no suffix of Python's."""
    numbers = [part for part in text.split(".") if part.isdigit()][:3]
    return ".".join([*numbers, *["0"] * (3 - len(numbers))])


def _result(problem: Problem, rule_index: int, root: str) -> dict[str, Any]:
    story = problem.story or problem.message
    result: dict[str, Any] = {
        "ruleId": problem.rule,
        "ruleIndex": rule_index,
        "level": problem.level,
        "message": {"text": story},
        "partialFingerprints": {"cudafork/v1": _fingerprint(problem, root)},
        # GitHub takes no file in which a result has none.
        "locations": [_location(problem.place or _somewhere(problem, root), root)],
    }
    if problem.steps:
        steps = [
            {"location": {**_location(place, root), "message": {"text": words}}}
            for place, words in problem.steps
        ]
        result["codeFlows"] = [{"threadFlows": [{"locations": steps}]}]
    if problem.accepted:
        result["suppressions"] = [{"kind": "external", "justification": problem.accepted}]
    if problem.test:
        result["properties"] = {"test": problem.test}
    return result


def _somewhere(problem: Problem, root: str) -> Place:
    """Return where to show a problem of which no line is known: its test file, or the project."""
    file = os.path.join(root, problem.test.partition("::")[0])
    return Place(file if os.path.isfile(file) else root, 1)


def _location(place: Place, root: str) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": _artifact(place.file, root),
            "region": {"startLine": place.line},
        }
    }


def _artifact(file: str, root: str) -> dict[str, str]:
    folder = os.path.realpath(root).rstrip(os.sep) + os.sep
    real = os.path.realpath(file)
    if real + os.sep == folder:
        return {"uri": ".", "uriBaseId": _ROOT}
    if real.startswith(folder):
        return {"uri": quote(os.fsencode(real[len(folder) :])), "uriBaseId": _ROOT}
    return {"uri": Path(real).as_uri()}


def _fingerprint(problem: Problem, root: str) -> str:
    """Return what stays the same when lines move: rule, file and the first line of the message.

    Line numbers are left out of it, or each edit above would make it a new problem.
    """
    file = _artifact(problem.place.file, root)["uri"] if problem.place else ""
    words = "".join(each for each in problem.message if not each.isdigit())
    data = "\0".join((problem.rule, file, words, problem.test))
    return hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest()[:32]
