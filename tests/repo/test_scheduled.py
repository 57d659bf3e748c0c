"""What is too slow or too varying for each commit runs by a schedule."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.repo.sources import PROJECT

yaml = pytest.importorskip("yaml")
WORKFLOWS = PROJECT / ".github" / "workflows"


def commands(job: dict[str, Any]) -> list[str]:
    """Return what a job runs."""
    return [step["run"] for step in job["steps"] if "run" in step]


def scheduled() -> dict[str, list[str]]:
    """Return the jobs of the workflows that a schedule starts, each with its commands."""
    found: dict[str, list[str]] = {}
    for file in sorted(WORKFLOWS.glob("*.yml")):
        workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
        if "schedule" in workflow[True]:  # YAML reads the key "on" so
            found |= {name: commands(job) for name, job in workflow["jobs"].items()}
    return found


@pytest.mark.parametrize(
    "command", ['make bench BENCHARGS="--save --against-last"', "make security"]
)
def test_a_schedule_compares_ratios_with_the_last_record_and_runs_the_analysers(
    command: str,
) -> None:
    assert any(command in each for each in scheduled().values())


def test_the_commands_of_the_schedule_are_targets_of_the_makefile() -> None:
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    for job in scheduled().values():
        for command in filter(lambda each: each.startswith("make "), job):
            target = command.split()[1].replace(".venv/", "$(VENV)/")
            assert f"\n{target}:" in makefile


def test_the_long_parts_that_need_no_package_of_others_run_by_a_schedule(
    benchmark: Callable[[str], Any],
) -> None:
    parts = benchmark("long_parts").LONG_CPU
    wanted = [name for name, part in parts.items() if not part.fetches and name != "vllm"]
    workflow = yaml.safe_load((WORKFLOWS / "bench.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["long"]
    assert job["strategy"]["matrix"]["part"] == wanted
    assert any("--only ${{ matrix.part }} --save --against-last" in run for run in commands(job))
    assert job["timeout-minutes"] > 2 * max(parts[name].minutes for name in wanted)


def test_each_job_runs_by_a_schedule_that_there_is() -> None:
    workflow = yaml.safe_load((WORKFLOWS / "bench.yml").read_text(encoding="utf-8"))
    times = [each["cron"] for each in workflow[True]["schedule"]]
    for job in workflow["jobs"].values():
        (other,) = re.findall(r"github\.event\.schedule != '([^']*)'", job["if"])
        assert other in times
