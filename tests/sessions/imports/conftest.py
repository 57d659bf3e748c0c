"""What several files of tests of the import audit need."""

from __future__ import annotations

import pytest

from tests.support.imports import SHOP, write_package


@pytest.fixture
def shop(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with the package ``shop``, whose modules have every verdict."""
    write_package(pytester.path, "shop", SHOP)
    return pytester
