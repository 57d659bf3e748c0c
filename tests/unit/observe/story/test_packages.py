"""The package of a file is told by its path."""

from __future__ import annotations

import json

import pytest

from pytest_cudafork.observe.story.packages import package_of

SITE = "/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        (f"{SITE}/torch/cuda/__init__.py", "torch"),
        (f"{SITE}/six.py", "six"),
        (f"{SITE}/made{SITE}/numba/cuda.py", "numba"),
        ("/usr/lib/python3/dist-packages/yaml/x.py", "yaml"),
        (r"C:\venv\lib\site-packages\cupy\core.py", "cupy"),
        ("<frozen importlib._bootstrap>", "<stdlib>"),
        pytest.param(json.__file__, "<stdlib>", id="json"),
        ("/usr/lib64/python3.13t/json/decoder.py", "<stdlib>"),
        ("/base/tests/test_it.py", ""),
        ("<string>", ""),
    ],
)
def test_the_package_of_a_file(filename: str, expected: str) -> None:
    assert package_of(filename) == expected
