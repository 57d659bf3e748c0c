"""What a look at the captures of scripts says that know nothing of the plugin."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from tests.specimens.graph_scripts.catalog import CATALOG, HOME, Script
from tests.specimens.plain_graphs.catalog import Verdict
from tests.specimens.plain_graphs.run import ONE_THREAD, Told, look_at_tests


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_look_at_the_captures_of_scripts_gives_the_verdicts(tmp_path: Path) -> None:
    for script in CATALOG:
        shutil.copy(HOME / f"{script.name}.py", tmp_path)
        (tmp_path / f"test_{script.name}.py").write_text(
            f"import {script.name}\n\n\ndef test_it():\n    {script.name}.serve()\n"
        )
    (tmp_path / "conftest.py").write_text(ONE_THREAD)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    found = look_at_tests("software", [script.name for script in CATALOG], tmp_path)
    assert {each.name: found[each.name] for each in CATALOG if not as_said(each, found)} == {}


def as_said(script: Script, found: dict[str, Told]) -> bool:
    """Whether what is said of a script is what the catalog has, with one of its lines."""
    told = found[script.name]
    if script.said is None:
        return not told.fails and not told.listed
    fails = script.said is not Verdict.SUSPICION
    return told.fails is fails and told.names(script.named_lines)


def test_every_script_is_listed_once_and_knows_nothing_of_the_plugin() -> None:
    names = [script.name for script in CATALOG]
    assert sorted(names) == sorted({path.stem for path in HOME.glob("*.py")})
    assert len(names) == len(set(names))
    for script in CATALOG:
        assert "cudafork" not in (HOME / f"{script.name}.py").read_text(encoding="utf-8")
        assert bool(script.named_lines) or script.said is None
