"""The commands that the docs show are taken: options are there, and values are allowed."""

from __future__ import annotations

import configparser
import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pytest_cudafork
from pytest_cudafork.__main__ import main as commands
from pytest_cudafork.settings import import_options
from pytest_cudafork.settings.options import PARSERS
from tests.repo.doc_shell import PAGES, blocks_of
from tests.repo.sources import DOCS, PROJECT
from tests.repo.test_docs import page_id, section

READERS = {
    option.flag: (option, parse)
    for option, parse in (*PARSERS.values(), *import_options.PARSERS.values())
}
if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_OURS = ("run", "explain", "imports", "merge", "html", "doctor", "attach", "fileworker")


def shown(page: Path) -> Iterator[list[str]]:
    """Return the commands in the blocks of a page, as a shell would split them."""
    for block in blocks_of(page):
        for line in block.text.replace("\\\n", " ").splitlines():
            text = re.sub(r"^(\$ |exec |- run: |[^'\"]+ \| )?(\S*venv/bin/)?", "", line.strip())
            text = re.sub(r"\$\{\{.*?\}\}", "phantom", text)  # a variable of a workflow
            if re.match(r"pytest -|pytest \S+/|python -m pytest", text):
                yield shlex.split(text.removeprefix("python -m "), comments=True)


@cache
def help_of(command: str) -> str:
    """Return what one of our commands says of itself."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        commands([command, "--help"])
    return out.getvalue()


def options_of(command: str) -> frozenset[str]:
    """Return the options in the help of one of our commands."""
    return frozenset(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", help_of(command)))


def table_of(command: str) -> str:
    """Return what the docs say of a command: its section of the reference, or its page."""
    if command == "fileworker":
        return (DOCS / "how-to" / "test-files-in-forks.md").read_text(encoding="utf-8")
    if command in ("run", "explain"):
        return section(DOCS / "reference" / "run.md", f"`python -m pytest_cudafork {command}`")
    return section(DOCS / "reference" / "command-line.md", f"`{command}`")


@pytest.mark.parametrize("command", _OURS)
def test_the_reference_has_each_option_of_a_command_and_no_other(command: str) -> None:
    text = table_of(command)
    cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `-")]
    usage = re.findall(rf"^`?python -m pytest_cudafork {command} [^`\n]*", text, re.M)
    told = set(re.findall(r"--[a-z][a-z-]*", " ".join([*cells, *usage])))
    if command == "imports":  # the others have the names that pytest's have, which are told there
        prefix = f"{import_options.PACKAGES.flag}-"
        told |= {f"--{flag.removeprefix(prefix)}" for flag in READERS if flag.startswith(prefix)}
    taken = re.findall(r"^  (-.+?)(?:  |$)", help_of(command), re.M)
    assert told | {"--help"} == set(re.findall(r"--[a-z][a-z-]*", " ".join(taken)))


def wrong_in(words: list[str]) -> str:
    """Return what the plugin would not take of a command, or ""."""
    if words[0] == "pytest_cudafork":
        command = words[1]
        if command not in _OURS:
            return f"no command {command!r}" if re.match(r"[a-z]+$", command) else ""
        known = options_of(command)
        for word in words[2:]:
            if command == "run" and not word.startswith("-"):
                break  # the program and its own arguments
            if word.startswith("-") and word != "--" and word.partition("=")[0] not in known:
                return f"{command} has no {word!r}"
        return ""
    for word in words[1:]:
        flag, equals, value = word.partition("=")
        if not flag.startswith("--cuda-fork"):
            continue
        if flag not in READERS:
            return f"no option {flag!r}"
        option, parse = READERS[flag]
        given = value if equals else option.flag_value
        if given is not None and not given.isupper():  # FILE, METHOD: stands for a value
            with contextlib.suppress(OSError):
                try:
                    parse(given)
                except ValueError as error:
                    return f"{word}: {error}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_commands_of_a_page_are_taken(page: Path) -> None:
    wrong = {shlex.join(words): what for words in shown(page) if (what := wrong_in(words))}
    assert not wrong


def programs_shown(page: Path) -> list[str]:
    """Return what a page hands to ``python -c`` in a block of its own."""
    texts = [block.text for block in blocks_of(page)]
    programs = [re.fullmatch(r"python -c '([^']+)'\n", text) for text in texts]
    return [found[1].replace("\\\n", "\n") for found in programs if found]


def test_the_programs_that_pages_hand_to_python_run_scripts_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those have tests of their own; a program is an import and a call."""
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        pytest_cudafork, "run_script", lambda *args, **_: calls.append(args), raising=False
    )
    for page in PAGES:
        for text in programs_shown(page):
            exec(compile(re.sub(r";\s+", "\n", text), page.name, "exec"), {})
    assert {call[0] for call in calls} == {"demo/service/post.py", "demo/kv_sharing.py"}
    for script, *options in calls:
        source = (PROJECT / script).read_text(encoding="utf-8")
        assert all(f'"{option.partition("=")[0]}"' in source for option in options), script


def settings_shown(page: Path) -> Iterator[tuple[str, object]]:
    """Return the ini values of this plugin in the blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```toml\n(.*?)^```", text, re.S | re.M):
        tool = tomllib.loads(block).get("tool", {})
        table = tool.get("pytest", {})
        yield from {**table.get("ini_options", {}), **table}.items()
    for block in re.findall(r"^```ini\n(.*?)^```", text, re.S | re.M):
        parser = configparser.ConfigParser()
        parser.read_string(block)
        yield from (pair for section in parser.sections() for pair in parser.items(section))


def test_the_settings_that_pages_show_are_taken() -> None:
    shown_values = [pair for page in PAGES for pair in settings_shown(page)]
    ours = [(name, value) for name, value in shown_values if name.startswith("cuda_fork")]
    assert len(ours) > 2
    readers = {option.name: (option, parse) for option, parse in READERS.values()}
    for name, value in ours:
        option, parse = readers[name]
        if isinstance(value, list):
            assert option.lines, name
            value = ",".join(value)
        assert parse(str(value)) is not None, name


def test_most_pages_show_commands() -> None:
    found = [shlex.join(words) for page in PAGES for words in shown(page)]
    assert len(found) > 60


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pytest --cuda-fork-chek", "no option"),
        ("pytest --cuda-fork-check=loud", "loud"),
        ("pytest_cudafork imports mypkg --quick", "has no '--quick'"),
        ("pytest_cudafork walk x.py", "no command"),
    ],
)
def test_a_wrong_command_is_found(line: str, words: str) -> None:
    assert words in wrong_in(line.split())
