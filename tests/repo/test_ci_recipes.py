"""The recipes for CI are files, shown as they are, that their services and the plugin take."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cudafork.settings.options import OPTIONS
from tests.repo.sources import DOCS, PROJECT

PAGE = DOCS / "how-to" / "ci-recipes.md"
RECIPES = DOCS / "examples" / "ci"
SCHEMAS = {
    "github-cpu.yml": "github-workflows",
    "github-gpu.yml": "github-workflows",
    "buildkite.yml": "buildkite",
    "gitlab.yml": "gitlab-ci",
}
_YAML = re.compile(r"<!-- yaml: (\S+) -->\n```yaml\n(.*?)```", re.S)

needs_schemas = pytest.mark.skipif(
    importlib.util.find_spec("check_jsonschema") is None,
    reason="check-jsonschema is in the extra [lint]",
)


def checked(path: Path, schema: str) -> subprocess.CompletedProcess[str]:
    """Hold a file against a schema that check-jsonschema brings."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    return subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)


def test_every_recipe_is_shown_as_it_is() -> None:
    shown = dict(_YAML.findall(PAGE.read_text(encoding="utf-8")))
    assert {Path(name).name for name in shown} == {path.name for path in RECIPES.iterdir()}
    for name, text in shown.items():
        assert text == (DOCS / name).read_text(encoding="utf-8"), name


@pytest.mark.slow
@needs_schemas
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_a_recipe_is_what_its_service_takes(name: str) -> None:
    done = checked(RECIPES / name, SCHEMAS[name])
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@needs_schemas
def test_a_recipe_that_its_service_does_not_take_is_found(tmp_path: Path) -> None:
    text = (RECIPES / "github-cpu.yml").read_text(encoding="utf-8")
    (tmp_path / "wrong.yml").write_text(text.replace("runs-on:", "run-on:"), encoding="utf-8")
    assert checked(tmp_path / "wrong.yml", "github-workflows").returncode == 1


def test_every_recipe_has_a_schema_or_is_for_pre_commit() -> None:
    names = {path.name for path in RECIPES.iterdir()}
    assert names - set(SCHEMAS) == {"pre-commit-config.yaml"}


@pytest.mark.parametrize("path", sorted(RECIPES.iterdir()), ids=lambda path: path.name)
def test_a_recipe_names_options_that_there_are(path: Path) -> None:
    used = set(re.findall(r"--cuda-fork[a-z-]*", path.read_text(encoding="utf-8")))
    assert used <= {option.flag for option in OPTIONS}
    assert used or path.name == "pre-commit-config.yaml"


def test_the_hooks_for_pre_commit_are_those_that_the_recipe_uses() -> None:
    published = (PROJECT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    used = (RECIPES / "pre-commit-config.yaml").read_text(encoding="utf-8")
    pattern = r"- id: ([\w-]+)"
    assert re.findall(pattern, published) == re.findall(pattern, used)
    for entry in re.findall(r"entry: python -m (.+)", published):
        module, *arguments = entry.split()
        assert module in {"pytest", "pytest_cudafork"}
        assert set(arguments) <= {option.flag for option in OPTIONS} | {"imports"}
