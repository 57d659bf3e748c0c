"""Operators of torch on both backends: what the table says of them holds here, too."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from tests.gpu.operators import sweep, table
from tests.support.torch import capturable_by_now

EVERY = 40
"""Of the operators that CUDA takes, one in so many is tried again here."""


def test_the_page_is_what_the_answers_say() -> None:
    assert table.PAGE.read_text(encoding="utf-8") == table.render(table.Answers.kept()), (
        "docs/reference/graph-operators.md is old: run `python -m tests.gpu.operators.table`"
    )


def test_the_software_graph_refuses_what_cuda_refuses_and_nothing_else(tmp_path: Path) -> None:
    answers = table.Answers.kept()
    known = {one.name for one in table.disagreements(answers)}
    # Releases have other samples: where CUDA takes some and refuses others nothing is known.
    known |= capturable_by_now()  # the table is of an earlier torch
    refused = {name for name, (cuda, _) in answers.said.items() if set(cuda) == {"r"}} - known
    taken = {name for name, (cuda, _) in answers.said.items() if set(cuda) == {"t"}} - known
    chosen = [*sorted(refused), *sorted(taken)[::EVERY]]
    assert len(refused) > 30
    names, out = tmp_path / "names.json", tmp_path / "out.json"
    names.write_text(json.dumps(chosen), encoding="utf-8")
    # It asks in a fresh interpreter: torch's list of operators changes torch's global flags.
    given = ("--backend", "software", "--names", str(names), "--jobs", "1", str(out))
    assert sweep.main(given) == 0
    wrong = {}
    for name, said in json.loads(out.read_text(encoding="utf-8"))["operators"].items():
        ran = [one for one in said if one["said"] not in (sweep.BROKEN, sweep.NOT_JUDGED)]
        words = [one["words"] for one in ran if one["said"] == sweep.REFUSED]
        if ran and bool(words) != (name in refused):
            wrong[name] = words or "it is taken here, and refused by CUDA"
    assert not wrong
