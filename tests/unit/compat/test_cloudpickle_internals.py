"""Names of cloudpickle."""

from __future__ import annotations

import pickle
from types import CodeType
from typing import Any

import pytest
from cloudpickle import cloudpickle

from pytest_cudafork.compat import cloudpickle_internals
from tests.unit.compat import require


def test_a_local_class_comes_back_as_itself() -> None:
    require("cloudpickle", cloudpickle, "_get_or_create_tracker_id", "classes that come back")

    class Local:
        pass

    cloudpickle_internals.remember_class(Local)
    assert pickle.loads(cloudpickle.dumps(Local)) is Local


def test_code_keeps_the_name_of_its_file() -> None:
    require("cloudpickle", cloudpickle, "_code_reduce", "tracebacks that name files")

    def outer() -> Any:
        return lambda: None

    sent = pickle.loads(cloudpickle_internals.dumps(outer))
    assert sent.__code__ is not outer.__code__
    assert sent.__code__.co_filename == sent().__code__.co_filename == __file__


def test_a_file_that_cloudpickle_leaves_out_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    reduce_code = cloudpickle._code_reduce

    def without_file(code: CodeType) -> Any:
        make, parts = reduce_code(code)
        left_out = (cloudpickle_internals._NO_FILE if each == __file__ else each for each in parts)
        return make, tuple(left_out)

    monkeypatch.setattr(cloudpickle, "_code_reduce", without_file)
    test_code_keeps_the_name_of_its_file()
