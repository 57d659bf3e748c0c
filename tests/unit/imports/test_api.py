"""The import audit as a function: ``pytest_cudafork.audit``."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

import pytest_cudafork
from pytest_cudafork import ImportRecord, ImportVerdict, audit
from pytest_cudafork.settings.import_options import check
from pytest_cudafork.settings.import_settings import ImportSettings
from pytest_cudafork.settings.real_driver import has_real_driver
from tests.support.imports import (
    SHOP,
    SHOP_VERDICTS,
    TOUCH,
    audit_here,
    verdicts_of,
    write_package,
)
from tests.support.sessions import needs_torch

PHANTOM = "phantom:sm_90"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return write_package(tmp_path, "shop", SHOP)


@pytest.mark.slow
def test_it_returns_a_record_of_every_module(shop: Path) -> None:
    fds, environment = set(os.listdir("/proc/self/fd")), dict(os.environ)
    folder, threads = os.getcwd(), set(threading.enumerate())
    records = {record.module: record for record in audit("shop", device=PHANTOM)}
    assert verdicts_of(records) == SHOP_VERDICTS
    assert list(records) == list(SHOP_VERDICTS)
    assert "shop" not in sys.modules
    assert (os.getcwd(), dict(os.environ)) == (folder, environment)
    # what others have left in this process may go meanwhile
    assert set(os.listdir("/proc/self/fd")) <= fds
    assert set(threading.enumerate()) <= threads
    _check_touch(records["shop.models.big"], shop)
    _check_others(records)


def _check_touch(big: ImportRecord, shop: Path) -> None:
    assert big.verdict is ImportVerdict.TOUCHES
    assert (big.package, big.without, big.reason) == ("shop", "", "")
    assert big.where == f"{shop}/flash.py:2"
    assert big.culprit is not None
    assert (big.culprit.name, big.culprit.lineno) == ("Kernel", 2)
    (touch,) = big.touches
    assert touch.entry == "cuInit"
    chain = [(Path(frame.filename).name, frame.lineno) for frame in touch.import_chain]
    assert chain == [("big.py", 1), ("layers.py", 1), ("flash.py", 2)]
    assert set(big.loaded) >= {"shop.models.big", "shop.layers", "shop.flash"}


def _check_others(records: dict[str, ImportRecord]) -> None:
    assert records["shop.broken"].reason.startswith("ModuleNotFoundError: ")
    assert "no_such_library" in records["shop.broken"].output
    assert records["shop.late"].reason == "ValueError: no such backend"
    assert records["shop.late"].touches
    assert records["shop.hook"].reason == "the process exited with status 7 during the import"
    assert all(record.seconds >= 0 for record in records.values())
    confirmed = {name for name, record in records.items() if record.confirmed}
    assert confirmed >= {"shop.flash", "shop.late", "shop.hook", "shop.broken"}
    assert not any(record.confirmed is False for record in records.values())


def test_more_than_one_package_and_parts_of_one(shop: Path) -> None:
    write_package(shop.parent, "other", {"__init__": "", "one": TOUCH})
    records = audit("other, shop.models,shop.models.big", device=PHANTOM, confirm=False)
    assert [(record.package, record.module) for record in records] == [
        ("other", "other"),
        ("other", "other.one"),
        ("shop.models", "shop.models"),
        ("shop.models", "shop.models.big"),
        ("shop.models", "shop.models.small"),
    ]
    assert not any(record.confirmed for record in records)


def test_exclude_and_jobs(shop: Path) -> None:
    records = audit("shop", exclude=["*.models", "shop.h*"], jobs=1, device=PHANTOM, confirm=False)
    names = {record.module for record in records}
    gone = {"shop.models", "shop.models.big", "shop.models.small", "shop.hook"}
    assert names == set(SHOP_VERDICTS) - gone


@pytest.mark.slow
def test_a_module_may_not_hold_more_memory_than_it_is_given(tmp_path: Path) -> None:
    files = {
        "__init__": "",
        "small": "",
        "big": "import time\nx = b'x' * (64 << 20)\ntime.sleep(600)",
    }
    write_package(tmp_path, "heavy", files)
    records = audit_here("heavy", tmp_path, memory=32 << 20)
    assert verdicts_of(records) == {
        "heavy": "clean",
        "heavy.small": "clean",
        "heavy.big": "crashed",
    }
    assert records["heavy.big"].reason == "its import was ended: it held more memory than it may"
    assert records["heavy.big"].confirmed is None


def test_a_module_may_not_take_longer_than_it_is_given(tmp_path: Path) -> None:
    write_package(tmp_path, "slow", {"__init__": "", "sleeps": "import time; time.sleep(60)"})
    records = audit_here("slow", tmp_path, timeout=4, confirm=False)
    assert records["slow.sleeps"].reason == "its import took longer than 4 s"
    assert records["slow"].verdict is ImportVerdict.CLEAN


@pytest.mark.parametrize(
    ("device", "faces"),
    [("phantom", "clean"), ("phantom:sm_90", "touches"), ("phantom:sm_90x2", "not importable")],
)
def test_modules_find_the_device_that_is_asked_for(tmp_path: Path, device: str, faces: str) -> None:
    text = """
        import ctypes
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
            nvml.nvmlInit_v2()
            nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        except OSError:
            pass
        if count.value == 1:
            driver.cuInit(0)
        if count.value == 2:
            raise ImportError("two")
        """
    write_package(tmp_path, "asks", {"__init__": text})
    records = audit_here("asks", tmp_path, device=device)
    assert records["asks"].verdict.value == faces, records["asks"].reason


@pytest.mark.skipif(has_real_driver(), reason="there is a driver here")
def test_the_default_is_a_gpu_and_the_real_driver_must_be_there(shop: Path) -> None:
    (record,) = audit("shop.flash")
    assert record.verdict is ImportVerdict.TOUCHES
    with pytest.raises(RuntimeError, match="no NVIDIA driver can be used here"):
        audit("shop", device="real")


@pytest.mark.parametrize(
    ("package", "options", "words"),
    [
        ("shopp", {}, "no module 'shopp'.*mean 'shop'"),
        ("shop.flash.deeper", {}, "'shop.flash' is a module, not a package"),
        (" ,", {}, "no package is named"),
        ("a b", {}, "'a b' is not a module name"),
        ("shop", {"exclude": ["a b"]}, "'a b' can match no module name"),
        ("shop", {"jobs": 0}, "jobs=0: '0' is not a number of processes"),
        ("shop", {"timeout": 0}, "timeout=0: '0' is not a number of seconds"),
        ("shop", {"memory": -1}, "memory=-1: '-1' is not a size"),
        ("shop", {"memory": None}, "memory=None: "),
        ("shop", {"device": "gpu"}, "gpu"),
        ("shop", {"without": ["json"]}, "json cannot be hidden, for it is imported already"),
        ("shop", {"without": ["flash-attn"]}, "'flash-attn' is not a module name"),
    ],
)
def test_arguments_that_cannot_be(
    shop: Path, package: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        audit(package, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("package", "options", "words"),
    [
        (5, {}, r"the name of a package, such as 'vllm', .* not 5"),
        (["a", "b"], {}, r"one text \('vllm, flashinfer'\), not \['a', 'b'\]"),
        (None, {}, "not None"),
        ("shop", {"exclude": "shop.hook"}, r"as exclude: write exclude=\['shop.hook'\]"),
        ("shop", {"without": "numba"}, r"as without: write without=\['numba'\]"),
        ("shop", {"exclude": None}, "a list of texts as exclude, not None"),
        ("shop", {"without": [3]}, r"a list of texts as without, not \[3\]"),
        ("shop", {"device": 3}, "device=3: a text"),
    ],
)
def test_arguments_of_a_wrong_type(
    shop: Path, package: object, options: dict[str, object], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        audit(package, **options)  # type: ignore[arg-type]


@pytest.mark.slow
@needs_torch
def test_touches_by_way_of_torch_are_seen_where_the_fork_server_has_imported_it(
    tmp_path: Path,
) -> None:
    files = {f"m{number}": "import torch" for number in range(8)}
    # Of this package and these names, the clean modules that are confirmed do without torch, whose
    # import takes a fresh interpreter seconds.
    files |= {f"plain{number}": "" for number in range(8)}
    files["asks"] = """
        import torch
        try:
            torch.cuda.init()
        except (AssertionError, RuntimeError):
            pass
        """
    write_package(tmp_path, "solid", {"__init__": "", **files})
    records = audit_here("solid", tmp_path)
    touching = {name for name, record in records.items() if record.verdict.touched}
    assert touching == {"solid.asks"}
    assert records["solid.asks"].where == f"{tmp_path}/solid/asks.py:4"
    assert records["solid.asks"].confirmed is True
    assert sum(record.verdict is ImportVerdict.CLEAN for record in records.values()) == 17
    confirmed = {name for name, record in records.items() if record.confirmed}
    assert len(confirmed) == 4


def test_it_works_on_linux_only(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match=r"works on Linux only \(this is darwin\)"):
        audit("shop", device=PHANTOM)
    with pytest.raises(ValueError, match="works on Linux only"):
        check(ImportSettings(packages=("shop",)))
    check(ImportSettings())


def test_the_names_are_public() -> None:
    assert pytest_cudafork.ImportVerdict.TOUCHES.value == "touches"
    assert pytest_cudafork.ImportRecord("m", "p", ImportVerdict.CLEAN).where == ""
