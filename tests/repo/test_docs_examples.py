"""The examples of the documentation are files; they run, and come out as the pages say."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.repo.doc_shell import PAGES
from tests.repo.sources import DOCS, PROJECT
from tests.repo.test_docs import page_id

pytestmark = pytest.mark.slow

EXAMPLES = DOCS / "examples"
CHECK = "--cuda-fork-check"

# How each example comes out with the check; without it all of them pass.
OUTCOMES: dict[str, dict[str, int]] = {
    "test_allowed.py": {"passed": 1},
    "test_child_patch.py": {"passed": 2},
    "test_children.py": {"passed": 4},
    "test_first.py": {"failed": 1},
    "test_first_fixed.py": {"passed": 1},
    "test_gpu_memory.py": {"passed": 1},
    "test_gpus.py": {"passed": 3},
    "test_graph_pair.py": {"failed": 1},
    "test_graph_manager.py": {"passed": 2},
    "test_graphs.py": {"passed": 2, "skipped": 1},
    "test_decorator.py": {"passed": 4},
    "test_isolated.py": {"passed": 4},
    "test_phantom.py": {"passed": 4},
    "test_scripts.py": {"passed": 2},
    "test_state.py": {"passed": 1},
    "test_shared_process.py": {"passed": 2},
    "test_watch.py": {"passed": 2},
}

# What an example needs beside the check.
ARGS = {
    "test_gpus.py": ("--cuda-fork-device=phantom:sm_90x2",),
    "test_graph_pair.py": ("--cuda-fork-graphs=software",),
    "test_graph_manager.py": ("--cuda-fork-graphs=software",),
    "test_graphs.py": ("--cuda-fork-graphs=software",),
}

# Not importorskip: pytester forgets the modules that a test imports, and torch does not survive a
# second import.
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="the examples use torch"
)

_FILE = re.compile(r"<!-- file: (\S+) -->\n```python\n(.*?)```", re.S)
_OUTPUT = re.compile(r"<!-- output of: (examples/[^\n]+) -->\n```\n(.*?)```", re.S)


ENGINE = re.compile(r"<!-- engine -->\n```python\n(.*?)```", re.S)
"""What the engine's own tests run (tests/engine/whole/test_pages.py)."""
_ANY = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)


def blocks(pattern: re.Pattern[str]) -> list[tuple[Path, str, str]]:
    """Return page, argument and text of each marked block."""
    return [
        (page, match[1], match[2])
        for page in PAGES
        for match in pattern.finditer(page.read_text(encoding="utf-8"))
    ]


def run(pytester: pytest.Pytester, name: str, *args: str) -> pytest.RunResult:
    """Run one example in a session of its own, away from the project's configuration."""
    shutil.copy(EXAMPLES / name, pytester.path)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *args, name)


def test_every_block_of_python_in_the_docs_is_a_file() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        plain = text.count("```python\n")
        marked = len(_FILE.findall(text)) + len(ENGINE.findall(text))
        assert plain == marked, f"{page} has {plain - marked} examples that no test runs"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_no_block_of_python_is_without_its_name(page: Path) -> None:
    for language, text in _ANY.findall(page.read_text(encoding="utf-8")):
        if not language:
            with contextlib.suppress(SyntaxError):
                plain = ast.unparse(ast.parse(text))
                assert plain.startswith("pytest -"), f"no test runs this block:\n{text}"


def test_every_block_is_its_file() -> None:
    assert blocks(_FILE)
    for page, name, text in blocks(_FILE):
        assert text == (DOCS / name).read_text(encoding="utf-8"), f"{page}: {name} differs"


def test_every_example_is_shown_and_has_an_outcome() -> None:
    files = {path.name for path in EXAMPLES.glob("*.py")}
    shown = {Path(name) for _, name, _ in blocks(_FILE)}
    assert files == {path.name for path in shown if path.parent.name == EXAMPLES.name}
    assert files == set(OUTCOMES)


@needs_torch
@pytest.mark.parametrize("name", sorted(OUTCOMES))
def test_an_example_comes_out_as_the_docs_say(pytester: pytest.Pytester, name: str) -> None:
    run(pytester, name, CHECK, *ARGS.get(name, ())).assert_outcomes(**OUTCOMES[name])


@needs_torch
def test_the_plugin_of_the_page_on_hooks_says_what_the_page_says(pytester: pytest.Pytester) -> None:
    shutil.copytree(EXAMPLES / "hooks", pytester.path, dirs_exist_ok=True)
    args = ("-p", "no:cacheprovider", CHECK, "--cuda-fork-device=phantom")
    result = pytester.runpytest_subprocess(*args)
    result.assert_outcomes(passed=3)
    _, _, said = (
        (DOCS / "reference" / "hooks.md").read_text().rpartition("--cuda-fork-device=phantom")
    )
    lines = [line for line in said.splitlines() if "test_model" in line]
    assert len(lines) == 2
    assert [line for line in result.outlines if line in lines] == lines


@needs_torch
def test_without_the_plugin_the_first_example_passes(pytester: pytest.Pytester) -> None:
    run(pytester, "test_first.py").assert_outcomes(passed=1)


@needs_torch
def test_output_in_the_docs_is_real(pytester: pytest.Pytester) -> None:
    assert blocks(_OUTPUT)
    for page, command, text in blocks(_OUTPUT):
        name, *args = shlex.split(command)
        result = run(pytester, Path(name).name, *args)
        real = [line.rstrip() for line in result.outlines]
        missing = [line for line in text.splitlines() if line.strip() and line.rstrip() not in real]
        assert not missing, f"{page.relative_to(PROJECT)}: {missing} is not in\n{result.stdout}"
