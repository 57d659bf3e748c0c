"""Isolated tests with plugins that call test functions: hypothesis, asyncio, anyio, mock."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_compare import Sessions
from tests.support.isolation_plugins import needs, same, write

HYPOTHESIS = """
    import pytest
    from hypothesis import event, given, settings, strategies as st

    @given(st.booleans())
    def test_good(yes):
        event(str(yes))

    @given(st.lists(st.integers()))
    @settings(max_examples=500)
    def test_bad(numbers):
        assert sum(numbers) < 1000

    @pytest.mark.parametrize("word", ["a", "b"])
    @given(number=st.integers(0, 5))
    def test_parameters(word, number):
        assert number < 5 or word == "a"

    @given(st.integers())
    def test_fixture(tmp_path, number):
        pass
"""
TIMINGS = (
    r"Typical runtimes:",
    r"^ +- during \w+ phase \([\d.]+ seconds\)",
    r"hypothesis-statistics-",
)


@pytest.mark.parametrize("method", METHODS)
def test_hypothesis_shows_the_same_examples_and_statistics(tmp_path: Path, method: str) -> None:
    runs = ("--hypothesis-seed=3 --hypothesis-show-statistics", "--lf --hypothesis-seed=4")
    seen = same(tmp_path, method, ["hypothesis"], {"test_it.py": HYPOTHESIS}, *runs, known=TIMINGS)
    assert any("Hypothesis Statistics" in line for line in seen[0].stdout)
    assert any("<property name='hypothesis-statistics-" in line for line in seen[0].junit)


@pytest.mark.parametrize("method", METHODS)
def test_the_database_of_hypothesis_is_written_and_read(tmp_path: Path, method: str) -> None:
    write(tmp_path, {"test_it.py": HYPOTHESIS, "pytest.ini": "[pytest]\n"})
    sessions = Sessions(tmp_path, "-k", "bad", plugins=[needs("hypothesis")])
    sessions.run(method)
    examples = [path for path in (tmp_path / ".hypothesis").rglob("examples/*/*") if path.is_file()]
    assert examples
    again = sessions.run(method, "--hypothesis-show-statistics")
    assert any("during reuse phase" in line for line in again.stdout), again.stdout


ASYNC = """
    import asyncio
    import pytest

    @pytest.fixture
    async def number():
        await asyncio.sleep(0)
        yield 5
        print("torn down")

    @pytest.mark.asyncio
    async def test_good(number):
        await asyncio.sleep(0)
        assert number == 5

    @pytest.mark.asyncio
    async def test_bad(number):
        print("in a coroutine")
        assert number == 6

    @pytest.mark.asyncio(loop_scope="module")
    @pytest.mark.parametrize("i", range(2))
    async def test_of_a_wider_loop(i):
        assert i == 0

    @pytest.mark.asyncio
    async def test_skips():
        pytest.skip("inside")
"""


@pytest.mark.parametrize("method", METHODS)
def test_asyncio_tests_are_reported_the_same(tmp_path: Path, method: str) -> None:
    ini = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    same(tmp_path, method, ["asyncio"], {"test_it.py": ASYNC, "pytest.ini": ini}, "")


ANYIO = """
    import anyio
    import pytest

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(request):
        return request.param

    @pytest.fixture
    async def number():
        await anyio.sleep(0)
        yield 5

    @pytest.mark.anyio
    async def test_good(number):
        await anyio.sleep(0)

    @pytest.mark.anyio
    async def test_bad(number):
        assert number == 6
"""


@pytest.mark.parametrize("method", METHODS)
def test_anyio_tests_are_reported_the_same(tmp_path: Path, method: str) -> None:
    if importlib.util.find_spec("trio") is None:
        pytest.skip("trio is not installed")
    same(tmp_path, method, ["anyio"], {"test_it.py": ANYIO}, "")


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


@pytest.mark.parametrize("method", METHODS)
def test_mocks_are_reported_the_same(tmp_path: Path, method: str) -> None:
    same(tmp_path, method, ["mock"], {"test_it.py": MOCK}, "")
