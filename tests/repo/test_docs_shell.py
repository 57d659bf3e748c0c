"""The commands that the pages show are run, in the order of the page, and print what it shows."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from tests.repo import doc_shell
from tests.repo.doc_runner import Walk, environment, missing_in, run
from tests.repo.doc_shell import PAGES, REASONS, SIGNS, Step, key_of, page_of, steps_of, table
from tests.repo.sources import PROJECT
from tests.repo.test_docs import page_id

WALKED = [
    page for page in PAGES if any(page_of(page_id(page)).is_run(step) for step in steps_of(page))
]


def skip_without(needed: Iterable[str]) -> None:
    """Skip the test where one of these is not installed, as in an environment without torch.

    Each is a module, or ``distribution>=release``.
    """
    for name in needed:
        module, _, least = name.partition(">=")
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {name}")
        if least and Version(importlib.metadata.version(module)) < Version(least):
            pytest.skip(f"needs {name}")


@pytest.mark.slow
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="the pages show none of a GPU")
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("path", WALKED, ids=page_id)
def test_the_commands_of_a_page_run_and_print_what_it_shows(path: Path, tmp_path: Path) -> None:
    page = page_of(page_id(path))
    skip_without(page.needs)
    walk = Walk(path, page, tmp_path)
    wrong = []
    for step in steps_of(path):
        if page.is_run(step) and (problem := walk.problem(step)):
            wrong.append(f"{step.page}:{step.line}: {key_of(step)}\n{problem}")
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.slow
def test_what_the_pages_install_is_there_for_pip(tmp_path: Path) -> None:
    """All of it at once: pip takes half a second each time. The tests have all that is named."""
    skip_without(("fastapi", "jinja2", "redis", "torch"))
    named = {name for step in steps() for name in page_of(step.page).installed_by(step)}
    assert {"pytest-cudafork", "pytest-cudafork[engine]", "torch"} <= named
    done = run(f"pip install {shlex.join(sorted(named))}", tmp_path, environment(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "does not provide the extra" not in done.stdout


def steps() -> Iterator[Step]:
    """Return the steps of all pages."""
    for page in PAGES:
        yield from steps_of(page)


def test_the_table_says_nothing_of_what_no_page_shows() -> None:
    shown = {(step.page, key_of(step)) for step in steps()}
    told = {
        (name, key)
        for name, page in table().items()
        if name != "common"
        for part in ("how", "not_run")
        for key in page.get(part, {})
    }
    assert told <= shown
    both = {name for name in table() if set(page_of(name).how) & set(page_of(name).not_run)}
    assert not both


def test_no_fence_of_a_page_is_overlooked() -> None:
    for page in PAGES:
        fences = re.findall(r"^ *(?:```|~~~)", page.read_text(encoding="utf-8"), re.M)
        assert len(fences) == 2 * len(list(doc_shell.blocks_of(page))), page


def test_what_the_table_says_of_a_command_has_a_use() -> None:
    commands = {step.command for step in steps()}
    for name in table():
        for key, how in page_of(name).how.items():
            times = [step.command for step in steps_of(PROJECT / name)].count(key)
            assert all(value in key for value in how.values), f"{name}: {key}"
            assert key.startswith("#!") or len(how.status) in (1, times), f"{name}: {key}"
            assert how != doc_shell.How(), f"{name}: {key}"
    for value in table()["common"]["values"]:
        assert any(value in command for command in commands), value


def test_each_output_that_a_page_shows_has_its_command_or_a_reason() -> None:
    unknown = [
        f"{step.page}:{step.line}: {key_of(step)}"
        for step in steps()
        if not step.command and key_of(step) not in page_of(step.page).not_run
    ]
    assert not unknown, "write `<!-- output of: COMMAND -->` above, or a reason in the table"


def test_what_is_run_in_place_of_a_command_says_why() -> None:
    for name in table():
        for key, how in page_of(name).how.items():
            assert bool(how.instead) == bool(how.why), f"{name}: {key}"


def sources_of(command: str) -> str:
    """Return a command with the text of the script that it starts."""
    script = re.search(r"(?:tools|benchmarks)/\w+\.py", command)
    return command + ((PROJECT / script[0]).read_text(encoding="utf-8") if script else "")


def test_each_reason_not_to_run_something_still_holds() -> None:
    for step in steps():
        found = page_of(step.page).not_run.get(key_of(step))
        if found is None:
            continue
        assert found.why, key_of(step)
        assert found.reason in REASONS, found.reason
        if found.reason in ("elsewhere", "record"):
            there = (PROJECT / found.by).read_text(encoding="utf-8")
            names = names_in(key_of(step))
            assert names
            assert all(name in there for name in names), (names, found.by)
        else:
            assert not found.by
            assert re.search(SIGNS[found.reason], sources_of(step.command or step.shown)), found


def names_in(line: str) -> list[str]:
    """Return the files and modules that a command or an output names, or else its first word."""
    found = re.findall(r"(?:demo/(?:service/)?)?([\w/]+)\.py\b|-m (\w+)[. ]|ADDRESS/(\w+)", line)
    return ["".join(name) for name in found] or re.findall(r"[\w-]{6,}", line)[:1]


def test_nothing_that_could_be_run_is_excused_for_its_length() -> None:
    ours = re.compile(r"(python -m )?pytest --cuda-fork|python -m pytest_cudafork \w")
    excused = [
        step.command
        for step in steps()
        if ours.match(step.command) and key_of(step) in page_of(step.page).not_run
    ]
    assert not excused


def test_the_count_has_every_command() -> None:
    said = "\n".join(doc_shell.account())
    (ran, outputs) = map(int, re.findall(r"(\d+) commands run, (\d+) outputs", said)[0])
    (not_run,) = map(int, re.findall(r"^(\d+) not run:", said, re.M))
    assert ran + not_run == len(list(steps()))
    assert not_run == sum(map(int, re.findall(r"^  (\d+): ", said, re.M)))
    assert ran > 5 * not_run / 2
    assert outputs > 8


def test_a_part_that_was_not_printed_is_found() -> None:
    printed = "E   a.py:5: module body\nE     > touch()\nexited after 0.25 s\n"
    assert missing_in("a.py:5: module\n...\nexited after 3.1 s\n", printed) == ""
    assert missing_in("a.py:6: module body", printed) == "a.py:6: module body"
    assert missing_in("exited ... a.py:5", printed) == "a.py:5"
    assert missing_in("2 of 953 files", "1 of 4 files", any_number=True) == ""


def test_commands_are_read_as_a_shell_reads_them() -> None:
    text = "pytest -k 'a # b'  # tells\n\nrun \\\n  it   # of\n"
    assert doc_shell.commands_in("make demo   # the plugin\n") == ["make demo"]
    assert doc_shell.commands_in(text.replace("a # b", "a")) == ["pytest -k 'a'", "run it"]
    assert shlex.split(doc_shell.commands_in("echo $?  # says\n")[0]) == ["echo", "$?"]
