"""Finds what the pages show of a shell, commands and what they print, and what is known of each.

``python -m tests.repo.doc_shell`` counts what the tests run, and says why the rest is not run.
"""

from __future__ import annotations

import functools
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.repo.sources import DOCS, PROJECT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGES = sorted([PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
TABLE = Path(__file__).with_name("shell_blocks.toml")

_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$", re.S | re.M
)
_PROGRAMS = ("cp", "curl", "echo", "git", "journalctl", "make", "pip", "pytest", "python", "tox")
_COMMAND = re.compile(rf"(\$ |[A-Z_]+=\S|(\S*/)?({'|'.join(_PROGRAMS)}|redis-server)\b(?!: ))")
_SHELL = ("sh", "bash", "console", "shell")
_OUTPUT = "output of: "
# What other tests of the docs run and compare.
_ELSEWHERE = ("output of: examples/", "audit of: ", "preload of: ")
REASONS: Mapping[str, str] = {
    "elsewhere": "other tests run it",
    "whole": "it is the test suite, or most of it",
    "gpu": "needs a GPU",
    "download": "downloads packages",
    "endless": "a server that runs until it is stopped",
    "hosts": "needs other hosts",
    "environment": "changes the environment that the tests run in",
    "record": "a record has it",
}
# What must be in the command, or in the script that it starts, for such a reason to hold.
SIGNS: Mapping[str, str] = {
    "whole": r"-m gpu|tests[/.]",
    "gpu": r"(?i)gpu|cuda",
    "download": r"\bpip\b|^tox|release_environments",
    "endless": r"serve",
    "hosts": r"ssh=|\bhost\b",
    "environment": r"pip uninstall",
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the comment in the line above it."""

    page: str
    line: int
    mark: str
    language: str
    text: str

    @property
    def is_shell(self) -> bool:
        """Whether it shows commands."""
        plain = not self.language and not self.mark and _COMMAND.match(self.text) is not None
        return self.language in _SHELL or plain

    @property
    def is_output(self) -> bool:
        """Whether it shows what a command prints, and no other test compares it."""
        return not self.language and not self.is_shell and not self.mark.startswith(_ELSEWHERE)


@dataclass(frozen=True)
class Step:
    """A command of a page, or the output that it shows of one, or both; in the page's order."""

    page: str
    line: int
    command: str
    shown: str = ""


@dataclass(frozen=True)
class How:
    """How a command is run where that is not as it is written, and what comes of it."""

    status: tuple[int, ...] = (0,)
    """The exit status; of a command that the page shows several times one for each."""
    before: str = ""
    after: str = ""
    """Lines for a shell: what a reader of the page does around the command."""
    values: Mapping[str, str] = field(default_factory=dict)
    """What placeholders of the page stand for."""
    instead: str = ""
    """Another command, where this one must not run; ``why`` says why not."""
    why: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    says: str = ""
    """A part of what is printed."""
    in_checkout: bool = False
    any_number: bool = False
    """Whether other numbers than those of the page may be printed."""


@dataclass(frozen=True)
class NotRun:
    """Why a command is not run, or an output not compared."""

    reason: str
    why: str
    by: str = ""
    """For "elsewhere" the test file that runs it, for "record" the record."""


@dataclass(frozen=True)
class Page:
    """What the table says of a page."""

    files: Mapping[str, str]
    how: Mapping[str, How]
    not_run: Mapping[str, NotRun]
    needs: tuple[str, ...]
    """Modules without which the page cannot be run, or ``distribution>=release``."""

    def how_of(self, step: Step) -> How:
        """Return how a command is run."""
        return self.how.get(key_of(step), How())

    def installed_by(self, step: Step) -> list[str]:
        """Return what a command installs by name, if it does nothing else."""
        command = self.how_of(step).instead or step.command
        return shlex.split(command)[2:] if re.match(r"pip install [^-]", command) else []

    def is_run(self, step: Step) -> bool:
        """Whether a command is run by itself."""
        return key_of(step) not in self.not_run and not self.installed_by(step)


def blocks_of(page: Path) -> Iterator[Block]:
    """Return the blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        line = text[: match.start("text")].count("\n") + 1
        name = str(page.relative_to(PROJECT))
        yield Block(name, line, match["mark"] or "", match["language"].strip(), match["text"])


def commands_in(text: str) -> list[str]:
    """Return the commands of a block, without comments; a script is one command."""
    if text.startswith("#!"):
        return [text]
    lines = text.replace("\\\n", " ").splitlines()
    bare = (re.sub(r"(^|\s+)# .*$", "", line).removeprefix("$ ") for line in lines)
    return [re.sub(r" {2,}", " ", line) for line in bare if line]


def steps_of(page: Path) -> list[Step]:
    """Return what is to be run and compared of a page, in its order."""
    steps: list[Step] = []
    for block in blocks_of(page):
        if block.is_shell and block.text.startswith("$ "):
            command, _, shown = block.text.partition("\n")
            steps.append(Step(block.page, block.line, commands_in(command)[0], shown))
        elif block.is_shell:
            commands = commands_in(block.text)
            steps += (Step(block.page, block.line, command) for command in commands)
        elif block.is_output and block.mark.startswith(_OUTPUT):
            command = block.mark.removeprefix(_OUTPUT)
            if steps and steps[-1].command == command and not steps[-1].shown:
                steps[-1] = Step(block.page, steps[-1].line, command, block.text)
            else:
                steps.append(Step(block.page, block.line, command, block.text))
        elif block.is_output:
            steps.append(Step(block.page, block.line, "", block.text))
    return steps


def key_of(step: Step) -> str:
    """Return the name of a step in the table: its command, or the first line of an output."""
    return (step.command or step.shown).splitlines()[0]


@functools.cache
def table() -> Mapping[str, Any]:
    """Return the table as it is written."""
    read: dict[str, Any] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return read


def page_of(name: str) -> Page:
    """Return what the table says of a page, with what it says of all."""
    common, own = table()["common"], table().get(name, {})
    how = {}
    for command, fields in own.get("how", {}).items():
        status = fields.get("status", 0)
        several = tuple(status) if isinstance(status, list) else (status,)
        how[command] = How(**{**fields, "status": several})
    return Page(
        files={**common["files"], **own.get("files", {})},
        how=how,
        not_run={key: NotRun(**fields) for key, fields in own.get("not_run", {}).items()},
        needs=tuple(own.get("needs", ())),
    )


def with_values(command: str, values: Mapping[str, str]) -> str:
    """Return a command with values in place of the page's placeholders."""
    for name, value in {**values, **table()["common"]["values"]}.items():
        command = command.replace(name, value)
    return command


def account() -> list[str]:
    """Return lines: what is not run and why, and how many commands and outputs are, and are not."""
    lines: list[str] = []
    reasons: Counter[str] = Counter()
    ran = outputs = 0
    for page in PAGES:
        not_run = page_of(str(page.relative_to(PROJECT))).not_run
        for step in steps_of(page):
            if (found := not_run.get(key_of(step))) is None:
                ran += 1
                outputs += bool(step.shown)
            else:
                reasons[found.reason] += 1
                lines.append(f"{step.page}:{step.line}: {key_of(step)}: {found.why}")
    lines.append(f"{ran} commands run, {outputs} outputs compared with what they print")
    lines.append(f"{reasons.total()} not run:")
    return lines + [f"  {number}: {REASONS[reason]}" for reason, number in reasons.most_common()]


if __name__ == "__main__":
    sys.stdout.write("\n".join(account()) + "\n")
