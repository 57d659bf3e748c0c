"""Operators of torch on both backends: what the table says of them holds here, too."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from tests.gpu.operators import sweep, table

EVERY = 40
"""Of the operators that CUDA takes, one in so many is tried again here."""


def test_the_page_is_what_the_answers_say() -> None:
    assert table.PAGE.read_text(encoding="utf-8") == table.render(table.Answers.kept()), (
        "docs/reference/graph-operators.md is old: run `python -m tests.gpu.operators.table`"
    )


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore")
def test_the_software_graph_refuses_what_cuda_refuses_and_nothing_else(one_thread: None) -> None:
    answers = table.Answers.kept()
    known = {one.name for one in table.disagreements(answers)}
    wrong = {}
    for number, operator in enumerate(sweep.operators()):
        name = sweep.name_of(operator)
        if name not in answers.said or name in known:
            continue
        cuda = set(answers.said[name][0]) - {"b"}
        # Releases have other samples: where CUDA takes some and refuses others nothing is known.
        if len(cuda) != 1 or (cuda == {"t"} and number % EVERY):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = [sweep.ask(operator, at, "software") for at in range(2)]
        ran = [one for one in said if one["said"] not in (sweep.BROKEN, sweep.NOT_JUDGED, "")]
        refused = [one["words"] for one in ran if one["said"] == sweep.REFUSED]
        if ran and bool(refused) != (cuda == {"r"}):
            wrong[name] = refused or "it is taken here, and refused by CUDA"
    assert not wrong
