"""The fork specimens, run by our check and under the eyes of what others ask: who tells what.

The part of ``catch_rate.py`` that is about forks.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from catch_peers import ANSWERS, PEERS
from catch_words import Verdict

from tests.specimens.catalog import CATALOG
from tests.specimens.run import alarm, is_told, names_the_line, run_form
from tests.specimens.specimen import Specimen

OURS = {"present": "phantom:sm_90", "absent": "phantom", "gpu": "real"}
"""The device of our check, by the name of the method."""

_BEFORE_FORKS = ("fork",)
_BY_A_TEST = ("fork", "collected", "tested")


def specimens(only: str) -> list[Specimen]:
    """Return the specimens whose name holds the word, and that this machine can run."""
    return [each for each in CATALOG if only in each.name and not each.why_not()]


def measure(each: Specimen, methods: Sequence[str], folder: Path) -> dict[str, Verdict]:
    """Run both forms of a specimen by every method.

    Args:
        each: The specimen.
        methods: Names of ``OURS`` and of the peers.
        folder: An empty folder.

    """
    ours = [method for method in methods if method in OURS]
    found = {method: _ours(each, method, folder / method) for method in ours}
    peers = [method for method in methods if method in PEERS]
    if peers:
        device = "real" if "gpu" in methods else OURS["present"]
        buggy, fixed = (
            _peers(each, form, device, folder / f"peers_{form}") for form in ("buggy", "fixed")
        )
        found |= {peer: Verdict(buggy[peer], False, fixed[peer]) for peer in peers}
    return found


def _ours(each: Specimen, method: str, folder: Path) -> Verdict:
    try:
        buggy = run_form(each, "buggy", folder / "buggy", OURS[method])
        fixed = run_form(each, "fixed", folder / "fixed", OURS[method])
    except subprocess.TimeoutExpired:
        return Verdict(False, False, True, "took too long")
    told = is_told(each, buggy)
    wrong = alarm(each, fixed)
    return Verdict(told, told and names_the_line(each, buggy), bool(wrong), wrong)


def _peers(each: Specimen, form: str, device: str, folder: Path) -> dict[str, bool]:
    """Return which of the peers said "initialized" at a moment at which it would be asked.

    That is before each fork; for a specimen that is about touches in the pytest process, which
    need not fork, also where a test of "nothing has initialized CUDA" would ask.
    """
    moments = _BY_A_TEST if each.level == "touch" else _BEFORE_FORKS
    answers = folder / "answers"
    answers.mkdir(parents=True)
    file = answers / "answers.jsonl"
    (answers / "sitecustomize.py").write_text("import benchmarks.catch_peers\n", encoding="utf-8")
    options = ["-p", "benchmarks.catch_peers"]
    if device != "real":  # without a driver of its own the plugin has to stand in for one
        watch = ("--cuda-fork-check=poison", f"--cuda-fork-device={device}")
        options = ["-p", "pytest_cudafork.plugin", *watch, *options]
    run_form(each, form, folder, options=options, environment={ANSWERS: str(file)})
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    told = [answer for answer in map(json.loads, lines) if answer["moment"] in moments]
    return {peer: any(answer[peer] for answer in told) for peer in PEERS}
