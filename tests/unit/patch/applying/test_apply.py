"""Tests of a patch that is applied to this process."""

from __future__ import annotations

import importlib
import os
import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.patch.applying.apply import Loaded, apply
from pytest_cudafork.patch.applying.records import Record
from tests.unit.patch.conftest import SOURCE

KINDS: dict[str, tuple[str, str, Any]] = {
    "function": ("setattr", "answer", len),
    "method": ("setattr", "Engine.step", len),
    "static method": ("setattr", "Engine.static", len),
    "no function": ("delattr", "answer", None),
    "item": ("setitem", "CONFIG", 2),
    "no item": ("delitem", "CONFIG", None),
}


def state(work: Any) -> list[Any]:
    """Return what a patch may change."""
    return [
        getattr(work, "answer", None),
        dict(vars(work.Engine)).get("step"),
        dict(vars(work.Engine)).get("static"),
        dict(work.CONFIG),
    ]


@pytest.mark.parametrize("kind", ["setattr", "setitem"])
def test_a_value_of_a_module_that_only_the_test_finds_is_looked_for_where_it_looks(
    package: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "beside"
    folder.mkdir()
    (folder / "beside_the_test.py").write_text("class Plan: pass\ndef key(): return 'k'\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    value = b"cbeside_the_test\nPlan\n."  # what pickle makes of the class
    path = "answer" if kind == "setattr" else "CONFIG"
    lost = Record(kind, f"{package}.work", path, pickle.dumps("a"), value)
    work: Any = importlib.import_module(f"{package}.work")
    with pytest.raises(ModuleNotFoundError, match="beside_the_test"):
        apply(lost)
    undo = apply(replace(lost, search=(str(folder), before[-1])))
    got = work.answer if kind == "setattr" else work.CONFIG["a"]
    assert got is sys.modules.pop("beside_the_test").Plan
    undo()
    assert sys.path == before


@pytest.mark.parametrize("imported", [True, False], ids=["imported", "not yet"])
@pytest.mark.parametrize(("kind", "path", "value"), KINDS.values(), ids=KINDS)
def test_a_patch_holds_from_the_import_on_until_it_is_undone(
    package: str, kind: str, path: str, value: Any, imported: bool
) -> None:
    name = f"{package}.work"
    before = state(importlib.import_module(name)) if imported else []
    record = Record(kind, name, path, pickle.dumps("a"), pickle.dumps(value))
    undo = apply(record)
    work: Any = importlib.import_module(name)
    if kind.endswith("item"):
        assert dict(work.CONFIG) == ({"a": 2} if value else {})
    elif value is None:
        assert not hasattr(work, "answer")
    else:
        *owner, last = path.split(".")
        assert vars(work.Engine if owner else work)[last] is len
    undo()
    undo()
    if imported:
        assert state(work) == before
    else:
        assert work.answer() == "real"
        assert work.Engine().step() == "real step"
        assert work.Engine.static() == "real static"
        assert work.CONFIG == {"a": 1}


@pytest.mark.parametrize("again", ["reload", "import"])
@pytest.mark.parametrize("imported", [True, False], ids=["imported", "not yet"])
@pytest.mark.parametrize(("kind", "path", "value"), KINDS.values(), ids=KINDS)
def test_a_patch_holds_in_a_module_that_is_executed_again_and_is_undone_there(
    package: str, kind: str, path: str, value: Any, imported: bool, again: str
) -> None:
    name = f"{package}.work"
    if imported:
        importlib.import_module(name)
    undo = apply(Record(kind, name, path, pickle.dumps("a"), pickle.dumps(value)))
    first: Any = importlib.import_module(name)
    if again == "reload":
        work = importlib.reload(first)
    else:
        del sys.modules[name]
        work = importlib.import_module(name)
        assert work is not first
    values = {"answer": vars(work).get("answer"), "CONFIG": work.CONFIG.get("a")}
    values |= {f"Engine.{one}": vars(work.Engine).get(one) for one in ("step", "static")}
    assert values[path] is pickle.loads(pickle.dumps(value))
    undo()
    for module in (first, work):
        assert module.answer() == "real"
        assert module.answer.__globals__ is vars(module)
        assert module.Engine().step() == "real step"
        assert module.Engine.static() == "real static"
        assert module.CONFIG == {"a": 1}
    assert importlib.reload(work).answer() == "real"


def test_the_undo_restores_what_the_module_has_made_when_it_was_executed_again(
    package: str,
) -> None:
    work: Any = importlib.import_module(f"{package}.work")
    old = work.answer
    undo = apply(Record("setattr", work.__name__, "answer", value=pickle.dumps(len)))
    importlib.reload(work)
    undo()
    assert work.answer is not old


def test_what_a_module_leaves_alone_when_it_is_executed_again_is_undone_once(
    package: str,
) -> None:
    work: Any = importlib.import_module(f"{package}.work")
    work.kept, work.removed = "before", "before"
    undos = [
        apply(Record("setattr", work.__name__, "kept", value=pickle.dumps("patched"))),
        apply(Record("setattr", work.__name__, "new", value=pickle.dumps(5), raising=False)),
        apply(Record("delattr", work.__name__, "removed")),
    ]
    importlib.reload(work)
    assert (work.kept, work.new) == ("patched", 5)
    assert not hasattr(work, "removed")
    for undo in undos:
        undo()
    assert (work.kept, work.removed) == ("before", "before")
    assert not hasattr(work, "new")


def test_a_patch_that_is_undone_before_the_import_never_holds(package: str) -> None:
    finders = len(sys.meta_path)
    apply(Record("setattr", f"{package}.work", "answer"), Loaded(value=len))()
    assert importlib.import_module(f"{package}.work").answer() == "real"
    assert len(sys.meta_path) <= finders


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (("setattr", "nothing"), "module 'patched_package.work' has no attribute 'nothing'"),
        (("delattr", "nothing"), "has no attribute 'nothing'"),
        (("setattr", "Engine.nothing"), "type 'Engine' has no attribute 'nothing'"),
        (("setattr", "nothing.x"), "module 'patched_package.work' has no attribute 'nothing'"),
        (("setitem", "nothing"), "has no attribute 'nothing'"),
        (("delitem", "CONFIG"), "there is no such key"),
        (("setitem", "LAYERS"), "list .* is no mapping"),
        (("setitem", "answer"), "function 'answer' is no mapping"),
    ],
)
@pytest.mark.parametrize("imported", [True, False], ids=["imported", "not yet"])
def test_what_is_not_there_is_told_and_no_import_goes_without_the_patch(
    package: str, record: tuple[str, str], words: str, imported: bool
) -> None:
    name = f"{package}.work"
    made = Record(record[0], name, record[1], pickle.dumps("b"), pickle.dumps(1))
    told: list[str] = []
    if imported:
        importlib.import_module(name)
        with pytest.raises((AttributeError, KeyError, TypeError), match=words):
            apply(made, failed=told.append)
        return
    apply(made, failed=told.append)
    for _ in range(2):
        with pytest.raises((AttributeError, KeyError, TypeError), match=words):
            importlib.import_module(name)
    assert len(told) == 2
    assert re.search(words, told[0])
    assert f"child_patch.{record[0]}" in told[0]


def test_what_need_not_be_there_is_set_and_taken_away_again(package: str) -> None:
    work: Any = importlib.import_module(f"{package}.work")
    for kind, path, key in (("setattr", "new", b""), ("setitem", "CONFIG", pickle.dumps("new"))):
        undo = apply(Record(kind, work.__name__, path, key, pickle.dumps(5), raising=False))
        assert 5 in (getattr(work, "new", 0), work.CONFIG.get("new"))
        undo()
        assert 5 not in (getattr(work, "new", 0), work.CONFIG.get("new"))
    for kind, path, key in (("delattr", "new", b""), ("delitem", "CONFIG", pickle.dumps("new"))):
        apply(Record(kind, work.__name__, path, key, raising=False))()
    assert work.CONFIG == {"a": 1}


HOLDERS = """
import types

def __getattr__(name):
    if name == "made":
        return "made on demand"
    raise AttributeError(name)

class Base:
    inherited = "of the class"

class Engine(Base):
    pass

class Elsewhere:
    "Keeps what is set where vars() does not show it, as modules of torch do."

    def __init__(self):
        vars(self)["kept"] = {"weight": "real"}

    def __getattr__(self, name):
        try:
            return vars(self)["kept"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self.kept[name] = value

    def __delattr__(self, name):
        del self.kept[name]

class Slots:
    __slots__ = ("slot",)

class Computed:
    settings = property(lambda self: vars(self)["_settings"],
                        lambda self, new: vars(self).update(_settings=new))

engine, elsewhere, slots, computed = Engine(), Elsewhere(), Slots(), Computed()
slots.slot = computed.settings = "real"
this = types.SimpleNamespace(own="real")
"""


@pytest.fixture
def holders(package: str, tmp_path: Any) -> Any:
    """A module whose objects have what they have in many ways."""
    (tmp_path / package / "holders.py").write_text(HOLDERS)
    return importlib.import_module(f"{package}.holders")


@pytest.mark.parametrize(
    "path",
    [
        *("made", "Engine.inherited", "engine.inherited", "this.own"),
        *("elsewhere.weight", "slots.slot", "computed.settings"),
    ],
)
def test_the_undo_leaves_nothing_in_an_object_that_it_did_not_hold(holders: Any, path: str) -> None:
    def look() -> list[Any]:
        owned = [
            dict(vars(one))
            for one in (holders, holders.Engine, holders.engine, holders.this, holders.computed)
        ]
        return [*owned, dict(holders.elsewhere.kept), holders.slots.slot]

    owner, _, name = path.rpartition(".")
    before = look()
    undo = apply(Record("setattr", holders.__name__, path, value=pickle.dumps("patched")))
    assert getattr(getattr(holders, owner) if owner else holders, name) == "patched"
    undo()
    assert look() == before


@pytest.mark.parametrize("path", ["made", "Engine.inherited", "engine.inherited"])
@pytest.mark.parametrize("raising", [True, False])
def test_what_an_object_does_not_hold_itself_cannot_be_removed_from_it(
    holders: Any, path: str, raising: bool
) -> None:
    with pytest.raises(AttributeError, match=r"child_patch.delattr\(.*does not hold .* itself"):
        apply(Record("delattr", holders.__name__, path, raising=raising))
    assert (holders.made, holders.engine.inherited) == ("made on demand", "of the class")


def test_variables_are_set_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHED_BEFORE", "old")
    monkeypatch.delenv("PATCHED_NEW", raising=False)
    undos = [
        apply(Record("setenv", "", "PATCHED_BEFORE", value=b"new")),
        apply(Record("setenv", "", "PATCHED_NEW", value=b"1")),
    ]
    assert (os.environ["PATCHED_BEFORE"], os.environ["PATCHED_NEW"]) == ("new", "1")
    undos.append(apply(Record("delenv", "", "PATCHED_BEFORE")))
    assert "PATCHED_BEFORE" not in os.environ
    for undo in reversed(undos):
        undo()
    assert os.environ["PATCHED_BEFORE"] == "old"
    assert "PATCHED_NEW" not in os.environ
    apply(Record("delenv", "", "PATCHED_NEW", raising=False))()
    with pytest.raises(KeyError, match="no such variable"):
        apply(Record("delenv", "", "PATCHED_NEW"))


def test_a_module_that_is_being_imported_is_patched_when_it_has_been(
    package: str, tmp_path: Any
) -> None:
    module = tmp_path / package / "patches_itself.py"
    module.write_text(
        "from pytest_cudafork.patch.applying.apply import Loaded, apply\n"
        "from pytest_cudafork.patch.applying.records import Record\n"
        f"undo = apply(Record('setattr', {package!r} + '.late', 'answer'), Loaded(value=len))\n"
        f"import {package}.late\n"
    )
    (tmp_path / package / "late.py").write_text(SOURCE)
    importlib.import_module(f"{package}.patches_itself")
    assert sys.modules[f"{package}.late"].answer is len
