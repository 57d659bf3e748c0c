"""Runs a form of a specimen in a pytest session of its own, and checks the outcome."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.specimens.specimen import Specimen
from tests.support import interpreters

TIME_LIMIT = 120
"""Seconds for one form; the slowest takes a few, a deadlock takes them all."""

_STORY_LINES = 60
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_FOREIGN = ("PYTEST_", "_CUDAFORK_", "CUDA_", "ENGINE_", "KINETO_", "VLLM_", "COV_CORE_")


@dataclass(frozen=True)
class Outcome:
    """How one form's session ended."""

    status: int
    output: str

    def story(self, words: str) -> str:
        """Return the part of the output that begins with these words; "" if it has none."""
        _, found, rest = self.output.partition(words)
        return "\n".join((found + rest).splitlines()[:_STORY_LINES])


def skip_where_impossible(specimen: Specimen) -> None:
    """Skip the test, with the reason, where the specimen cannot be shown."""
    if why_not := specimen.why_not():
        pytest.skip(f"specimen {specimen.name} {why_not}")


def run_form(
    specimen: Specimen,
    form: str,
    folder: Path,
    device: str = "",
    options: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Outcome:
    """Run a copy of a form in a pytest session of its own, as its author would.

    Args:
        specimen: what to run.
        form: ``buggy`` or ``fixed``.
        folder: an empty directory for the copy.
        device: ``--cuda-fork-device`` instead of the specimen's own.
        options: instead of loading the plugin and switching on the check.
        environment: further variables.

    Raises:
        subprocess.TimeoutExpired: it took longer than ``TIME_LIMIT``.

    """
    copy = folder / specimen.name
    specimen.form(form).copy_to(copy)
    (copy / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")  # look no further upwards
    chosen = options or (
        *("-p", "pytest_cudafork.plugin", f"--cuda-fork-check={specimen.level}"),
        f"--cuda-fork-device={device or specimen.device}",
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *chosen, str(copy)]
    environ = {**_clean_environment(), **environment}
    done = interpreters.run(command, cwd=copy, env=environ, merge=True, timeout=TIME_LIMIT)
    return Outcome(done.returncode, _ANSI.sub("", done.stdout))


def _clean_environment() -> dict[str, str]:
    """Return this process's environment without what would change a session.

    Other plugins are not loaded: they are not what is tested, and cost half of the time.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "COLUMNS": "200",
    }


def is_told(specimen: Specimen, outcome: Outcome) -> bool:
    """Whether a session ended as that of a buggy form must, with the words of its story."""
    return outcome.status == specimen.status and bool(outcome.story(specimen.expects_failure))


def names_the_line(specimen: Specimen, outcome: Outcome) -> bool:
    """Whether the story names the marked line."""
    named = "|".join(re.escape(line) for line in specimen.named_lines)
    return bool(re.search(rf"({named})(?!\d)", outcome.story(specimen.expects_failure)))


def alarm(specimen: Specimen, outcome: Outcome) -> str:
    """Return what is wrong with the session of a fixed form; "": it passed in silence."""
    if outcome.status != 0:
        return f"exit status {outcome.status}"
    for words in ("forks guarded: 0", "poisoned touches: 0"):
        if words not in outcome.output:
            return f"not {words!r}"
    # A repaired line may touch in a test, where it is in nobody's way: that is listed, not blamed.
    told = re.sub(r"^touched in tests:\n(?:  .*\n)+", "", outcome.output, flags=re.MULTILINE)
    blamed = re.search(re.escape(specimen.culprit) + r":\d+", told)
    return f"{blamed[0]} is named" if blamed else ""


def assert_caught(specimen: Specimen, outcome: Outcome) -> None:
    """Check that a buggy form failed with the story that names the marked line."""
    assert outcome.status == specimen.status, outcome.output
    assert is_told(specimen, outcome), f"no {specimen.expects_failure!r} in:\n{outcome.output}"
    assert names_the_line(specimen, outcome), (
        f"{specimen.culprit_line} is not named in:\n{outcome.output}"
    )


def assert_silent(specimen: Specimen, outcome: Outcome) -> None:
    """Check that a fixed form passed, and that nothing was refused, poisoned or blamed."""
    wrong = alarm(specimen, outcome)
    assert not wrong, f"{wrong} in:\n{outcome.output}"
