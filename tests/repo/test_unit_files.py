"""Each module of the package has a test file of its name, at the mirrored path below tests/unit."""

from __future__ import annotations

import pytest

from tests.repo.sources import PACKAGE, PROJECT, Module, modules
from tests.repo.unit_files import UNIT, exceptions, modules_to_test, own_test_file


@pytest.mark.parametrize("module", modules_to_test(), ids=lambda m: m.short or PACKAGE)
def test_the_module_has_a_test_file_of_its_name(module: Module) -> None:
    path = own_test_file(module).relative_to(PROJECT)
    assert own_test_file(module).exists() or (module.short or PACKAGE) in exceptions(), (
        f"{module.path.relative_to(PROJECT)} has no {path}: add one, or say in "
        "tests/repo/not_covered_by_name.toml why what it does cannot be tested in process"
    )


def test_no_two_modules_share_a_test_file() -> None:
    files = [own_test_file(module) for module in modules_to_test()]
    assert len(files) == len(set(files))


def test_folders_of_unit_tests_are_those_of_the_package() -> None:
    folders = {path.parent.relative_to(UNIT) for path in UNIT.rglob("test_*.py")}
    strange = sorted(str(path) for path in folders if not (PROJECT / PACKAGE / path).is_dir())
    assert not strange, f"no folders of {PACKAGE}: {', '.join(strange)}"


def test_every_exception_is_a_module_with_a_reason() -> None:
    names = {module.short or PACKAGE for module in modules()}
    assert sorted(exceptions().keys() - names) == []
    assert [name for name, reason in exceptions().items() if len(reason.split()) < 3] == []
