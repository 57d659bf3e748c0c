"""The settings of an audit's processes: limits, and the plain form in which they travel."""

from __future__ import annotations

import json

from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.settings.import_settings import ImportSettings


def test_no_module_has_a_limit_above_the_longest() -> None:
    settings = AuditSettings(timeout=7.5)
    assert settings.limit_of("pkg.slow") == 7.5
    assert settings.longest_limit >= settings.limit_of("pkg.slow")


def test_without_a_word_the_limits_are_those_of_the_options() -> None:
    assert AuditSettings().limit_of("pkg") == ImportSettings().timeout == 120.0
    assert AuditSettings().memory == ImportSettings().memory == 0


def test_they_travel_as_plain_data() -> None:
    settings = AuditSettings("sm_100x2", "fastlib+slowlib", 3.0, 4, 1 << 30)
    assert AuditSettings.from_plain(json.loads(json.dumps(settings.to_plain()))) == settings
