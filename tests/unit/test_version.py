"""Tests of the version: one number, wherever it is asked for."""

from __future__ import annotations

import importlib.metadata
import re

import pytest_cudafork
from pytest_cudafork._version import version


def test_the_version_is_that_of_the_installed_package() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+([a-z]+\d+)?", version)
    assert pytest_cudafork.__version__ == version
    assert importlib.metadata.version("pytest-cudafork") == version
