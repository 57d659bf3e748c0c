"""What the options amount to: modules, driver, and how many imports run at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cudafork.imports.audit import plan
from pytest_cudafork.imports.audit.discover import UnknownPackage
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.process import launch
from pytest_cudafork.settings.devices import Device, DeviceKind
from pytest_cudafork.settings.import_settings import ImportSettings
from tests.support.imports import SHOP, SHOP_VERDICTS, write_package


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return write_package(tmp_path, "shop", SHOP)


@pytest.mark.usefixtures("shop")
def test_a_package_within_another_is_part_of_that() -> None:
    found = plan.find_all(["shop.models", "shop", "shop"], [])
    assert list(found) == ["shop"]
    assert [module.name for module in found["shop"]] == list(SHOP_VERDICTS)


@pytest.mark.usefixtures("shop")
def test_what_leaves_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no package is named"):
        plan.find_all([], [])
    with pytest.raises(ValueError, match="nothing is left of 'shop': it is excluded by shop"):
        plan.find_all(["shop"], ["shop"])


def test_a_folder_that_is_here_and_not_on_the_path_is_pointed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, "cudafork_here", {"__init__": ""})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(UnknownPackage, match="folder 'cudafork_here' is here, but not on the"):
        plan.find_all(["cudafork_here"], [])


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("src/cudafork_here/__init__.py", "folder 'src/cudafork_here' is here, .*: install it"),
        ("src/cudafork_here.py", "file 'src/cudafork_here.py' is here, .* or set PYTHONPATH=src"),
        ("cudafork_here.py", "file 'cudafork_here.py' is here, .*: start with `python -m pytest`"),
    ],
)
def test_so_is_one_in_src_and_a_single_module(
    file: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(UnknownPackage, match=told):
        plan.find_all(["cudafork_here.sub"], [])
    with pytest.raises(UnknownPackage, match=r"'cudafork_other' on the module search path \S+ e"):
        plan.find_all(["cudafork_other"], [])


def test_without_a_driver_modules_find_a_phantom_with_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "has_real_driver", lambda: False)
    settings = plan.settings_of(ImportSettings(timeout=3.0, jobs=2, memory=5), Device())
    assert settings == AuditSettings("sm_90", "", 3.0, 2, 5)
    monkeypatch.setattr(plan, "has_real_driver", lambda: True)
    monkeypatch.setattr(plan, "resolve_device", lambda device: "real")
    assert plan.settings_of(ImportSettings(), Device()).device == "real"


def test_a_phantom_is_as_it_was_asked_for_and_the_jobs_are_the_cores() -> None:
    settings = plan.settings_of(ImportSettings(), Device(DeviceKind.PHANTOM, "sm_100x2"))
    assert (settings.device, settings.jobs) == ("sm_100x2", launch.usable_cores())


def test_outside_pytest_wrong_usage_is_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="no driver"), plan.usage_errors():
        raise pytest.UsageError("no driver")
    with plan.usage_errors():
        pass
