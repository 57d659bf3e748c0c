"""What the options say of the import audit, where they say nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_cudafork.settings import import_settings
from pytest_cudafork.settings.import_options import PARSERS
from pytest_cudafork.settings.import_settings import ImportSettings


def test_every_option_has_a_field_and_without_one_no_audit_is_asked_for() -> None:
    assert set(PARSERS) == set(ImportSettings._fields) == set(ImportSettings._field_defaults)
    settings = ImportSettings()
    assert settings.packages == ()
    assert (settings.timeout, settings.jobs, settings.memory) == (120.0, 0, 0)
    with pytest.raises(AttributeError):
        settings.timeout = 1.0  # type: ignore[misc]


def test_the_processes_of_the_audit_read_it_without_pytest() -> None:
    code = f"import sys, {import_settings.__name__}; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
