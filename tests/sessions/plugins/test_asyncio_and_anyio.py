"""Isolated tests that are coroutines: pytest-asyncio and anyio."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_plugins import same

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


def test_asyncio_tests_are_reported_the_same(tmp_path: Path) -> None:
    ini = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    same(tmp_path, METHODS, ["asyncio"], {"test_it.py": ASYNC, "pytest.ini": ini}, "")


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


def test_anyio_tests_are_reported_the_same(tmp_path: Path) -> None:
    if importlib.util.find_spec("trio") is None:
        pytest.skip("trio is not installed")
    same(tmp_path, METHODS, ["anyio"], {"test_it.py": ANYIO}, "")
