"""The settings of the import audit, as they are where nothing was said."""

from __future__ import annotations

import subprocess
import sys

from pytest_cudafork.settings.import_settings import ImportSettings


def test_by_default_nothing_is_audited_and_nothing_written() -> None:
    settings = ImportSettings()
    assert settings.packages == settings.exclude == settings.without == ()
    assert settings.baseline == settings.graph == ""
    assert (settings.strict, settings.update) == (False, False)
    assert (settings.timeout, settings.jobs, settings.memory) == (120.0, 0, 0)


def test_the_processes_of_the_audit_need_no_pytest_for_it() -> None:
    code = (
        "import sys, pytest_cudafork.settings.import_settings\nsys.exit('pytest' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
