"""The specimens against a real driver: the same lines are named, the same repairs are silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specimens.catalog import CATALOG
from tests.specimens.run import assert_caught, assert_silent, run_form, skip_where_impossible
from tests.specimens.specimen import Specimen

pytestmark = pytest.mark.gpu

each_specimen = pytest.mark.parametrize(
    "specimen",
    [specimen for specimen in CATALOG if specimen.gpu],
    ids=lambda specimen: specimen.name,
)


@each_specimen
def test_the_buggy_form_is_caught_on_a_real_driver(specimen: Specimen, tmp_path: Path) -> None:
    skip_where_impossible(specimen)
    assert_caught(specimen, run_form(specimen, "buggy", tmp_path, device="real"))


@each_specimen
def test_the_fixed_form_passes_on_a_real_driver(specimen: Specimen, tmp_path: Path) -> None:
    skip_where_impossible(specimen)
    assert_silent(specimen, run_form(specimen, "fixed", tmp_path, device="real"))
