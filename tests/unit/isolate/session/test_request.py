"""Tests of what a child is told: the session it has to make, and the test it has to run."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path

import pytest

from pytest_cudafork.isolate import earlier_tests, incremental, item_names
from pytest_cudafork.isolate.session import request
from pytest_cudafork.process import child
from pytest_cudafork.process.protocol import frames
from tests.unit.isolate.session import items_of

SOURCE = """
import pytest

def test_plain(): pass

class TestClass:
    def test_method(self): pass

@pytest.mark.parametrize("x", [1, 2], ids=["::", "b"])
def test_params(x): pass
"""


def test_a_request_travels_and_holds_the_options_of_the_session(
    pytester: pytest.Pytester,
) -> None:
    (item,) = items_of(pytester, "def test_it(): pass", "-k", "it", "--basetemp=mine")
    config = item.config
    config.option.cannot_be_pickled = lambda: None
    asked = frames.loads(frames.dumps(request.session_request(config, ["a.py"], ("b.py",))))
    options = {name: pickle.loads(value) for name, value in asked["options"].items()}
    assert options["keyword"] == "it"
    assert options["rootdir"] == str(config.rootpath) == str(pytester.path)
    assert (options["inifilename"], asked["inipath"]) == (os.devnull, None)
    assert options["confcutdir"] == str(pytester.path)
    assert (options["basetemp"], options["log_file_mode"]) == (None, "a")
    assert not {"cannot_be_pickled", "file_or_dir"} & options.keys()
    assert (list(asked["targets"]), list(asked["left_out"])) == (["a.py"], ["b.py"])
    assert asked["basetemp"] == str(pytester.path / "mine")
    assert Path(asked["basetemp"]).is_dir()
    assert asked["args"] == [str(item.path)]
    assert asked["invocation_dir"] == str(pytester.path)
    assert "--basetemp=mine" in asked["invocation_args"]
    assert (asked["workerinput"], asked["log_file"], asked["pytest_cov"]) == (None, None, False)


def test_a_childs_session_has_the_ini_file_and_the_log_of_this_one(
    pytester: pytest.Pytester,
) -> None:
    ini = pytester.makeini("[pytest]")
    (item,) = items_of(pytester, "def test_it(): pass", "--log-file=kept.log")
    item.config.workerinput = {"workerid": "gw0"}  # type: ignore[attr-defined]
    asked = request.session_request(item.config, [])
    assert asked["inipath"] == str(ini) == pickle.loads(asked["options"]["inifilename"])
    assert asked["log_file"] == str(pytester.path / "kept.log")
    assert asked["workerinput"] == {"workerid": "gw0"}


def test_without_temporary_directories_there_is_none_to_share(pytester: pytest.Pytester) -> None:
    (item,) = items_of(pytester, "def test_it(): pass", "-p", "no:tmpdir")
    assert request.make_basetemp(item.config) == ""


def test_a_temporary_directory_that_cannot_be_made_is_tried_by_who_needs_it(
    pytester: pytest.Pytester,
) -> None:
    (item,) = items_of(pytester, "def test_it(): pass", "--basetemp=/proc/nowhere")
    assert request.make_basetemp(item.config) is None
    asked = request.session_request(item.config, [])
    assert asked["basetemp"] == ""
    assert str(pickle.loads(asked["options"]["basetemp"])) == "/proc/nowhere"


@pytest.mark.parametrize(("found", "told"), [("/found", "/found"), (None, None), (b"/x", None)])
def test_a_child_is_told_where_temporary_files_are_made_here(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, found: object, told: object
) -> None:
    (item,) = items_of(pytester, "def test_it(): pass", "-p", "no:tmpdir")
    monkeypatch.setattr(tempfile, "tempdir", found)
    assert request.session_request(item.config, [])["temporary"] == told


def test_of_a_test_its_function_is_collected_and_of_an_odd_one_the_file(
    pytester: pytest.Pytester,
) -> None:
    plain, method, odd, params = items_of(pytester, SOURCE)
    file = str(plain.path)
    assert request.target_of(plain) == f"{file}::test_plain"
    assert request.target_of(method) == f"{file}::TestClass::test_method"
    assert request.target_of(odd) == request.target_of(params) == f"{file}::test_params"


@pytest.mark.parametrize("folder", ["a[1]", "a::b"])
def test_a_path_that_reads_like_a_part_of_a_test_is_collected_whole(
    pytester: pytest.Pytester, folder: str
) -> None:
    # Not below ".": of that and a file in it, pytest 8.4 takes the file alone.
    file = pytester.mkdir("above") / folder / "test_a.py"
    file.parent.mkdir()
    file.write_text("def test_it(): pass")
    (item,) = items_of(pytester, "", "above")
    assert request.target_of(item) == str(file)


def test_what_is_no_function_is_collected_with_its_file(pytester: pytest.Pytester) -> None:
    source = '"""\n>>> 1\n1\n"""\n'
    (item,) = items_of(pytester, source, "--doctest-modules")
    assert not isinstance(item, pytest.Function)
    assert request.target_of(item) == str(item.path)


def test_an_order_names_the_tests_and_the_world_around_them(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTSIDE", "1")
    items = items_of(pytester, SOURCE)
    order = request.work_order(items[0], items[1], env={"MORE": "2"})
    assert order.test == item_names.name_of(items[0])
    assert order.next == item_names.name_of(items[1])
    assert order.reruns is None
    assert order.surroundings == child.surroundings({"MORE": "2"})
    assert frames.dumps(order.to_plain())
    assert request.work_order(items[3], None, env={}).next is None


def test_a_step_is_collected_with_those_before_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (item,) = items_of(pytester, "def test_it(): pass")
    monkeypatch.setattr(incremental, "is_step", lambda one: one is item)
    assert request.target_of(item) == str(item.path)


def test_an_order_says_what_is_remembered_of_earlier_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = items_of(pytester, SOURCE)
    assert request.work_order(items[0], items[1], env={}).earlier is None
    monkeypatch.setattr(earlier_tests, "pack", lambda known: [{"of": len(known)}, {}, {}])
    order = request.work_order(items[0], items[1], [None], env={})
    assert order.earlier == [{"of": 3}, {}, {}]
