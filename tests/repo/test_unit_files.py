"""Each module of the package has a test file of its name, at the mirrored path below tests/unit."""

from __future__ import annotations

from tests.repo.sources import PACKAGE, PROJECT, modules
from tests.repo.unit_files import (
    LEAST_PERCENT,
    UNIT,
    Recorded,
    exceptions,
    modules_to_test,
    name_of,
    own_test_file,
    recorded,
    statements_of,
    why_measure_again,
)


def test_each_module_has_a_test_file_of_its_name() -> None:
    missing = [
        f"{module.path.relative_to(PROJECT)} has no {own_test_file(module).relative_to(PROJECT)}"
        for module in modules_to_test()
        if not own_test_file(module).exists() and (module.short or PACKAGE) not in exceptions()
    ]
    assert not missing, (
        "\n".join(missing) + "\nadd one, or say in tests/repo/not_covered_by_name.toml why what "
        "it does cannot be tested in process"
    )


def test_each_module_was_measured_and_is_covered_by_the_test_file_of_its_name() -> None:
    known = recorded()
    found = {m: why_measure_again(m, known.get(name_of(m))) for m in modules_to_test()}
    told = {module: why for module, why in found.items() if why}
    parts = " ".join(name_of(module).replace(".", "/") for module in told)
    assert not told, (
        "\n".join(f"{name_of(module)} {why}" for module, why in told.items())
        + f"\nmeasure again: python tools/check_unit_coverage.py --record {parts}"
    )


def test_a_module_is_measured_again_when_it_is_new_or_has_changed_or_is_not_covered() -> None:
    module = max(modules_to_test(), key=statements_of)
    now = statements_of(module)
    assert now > 50
    for known, words in [
        (None, "never"),
        (Recorded(LEAST_PERCENT - 0.1, now), "is covered to 79.9 %"),
        (Recorded(100, now * 2 // 3), "had "),
        (Recorded(100, now * 2), "had "),
    ]:
        assert words in why_measure_again(module, known)
    assert not why_measure_again(module, Recorded(LEAST_PERCENT, now - 10))


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
