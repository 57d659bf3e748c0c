"""Isolated tests with pytest-mock."""

from __future__ import annotations

from pathlib import Path

from tests.support.isolation import METHODS
from tests.support.isolation_plugins import same

MOCK = """
    import os

    def test_mock(mocker):
        mocker.patch("os.getcwd", return_value="here")
        assert os.getcwd() == "here"

    def test_undone():
        assert os.getcwd() != "here"

    def test_wrong_call(mocker):
        stub = mocker.stub(name="stub")
        stub(1)
        stub.assert_called_once_with(2)

    def test_spy(mocker, module_mocker):
        spy = mocker.spy(os.path, "join")
        assert os.path.join("a", "b") == "a/b"
        assert spy.call_count == 2
"""


def test_mocks_are_reported_the_same(tmp_path: Path) -> None:
    same(tmp_path, METHODS, ["mock"], {"test_it.py": MOCK}, "")
