"""The parts of a driver, of which some may be there and others not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.settings import environment, real_driver
from pytest_cudafork.settings.real_driver import LIBCUDA, has_kernel_part, has_real_driver

FILES = ("version", "nvidiactl", "dxg", "modprobe", "cache", "usual", "without_a_cache")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for the files of a machine on which nothing of a driver is."""
    at = {name: str(tmp_path / name) for name in FILES}
    for name, value in {
        "VERSION_FILE": at["version"],
        "DEVICE_SIGNS": (at["nvidiactl"], at["dxg"]),
        "_MAKES_DEVICES": (at["modprobe"],),
        "_CACHE": at["cache"],
        "_USUAL": (at["usual"],),
        "_WITHOUT_A_CACHE": (at["without_a_cache"],),
    }.items():
        monkeypatch.setattr(real_driver, name, value)
    monkeypatch.delenv(environment.LIBRARY_PATH, raising=False)
    return tmp_path


def put(folder: Path) -> str:
    """Put a library there, and return the folder."""
    folder.mkdir()
    (folder / LIBCUDA).touch()
    return str(folder)


def test_without_a_sign_there_is_none(machine: Path) -> None:
    put(machine / "usual")
    assert real_driver.why_no_driver() == f"{machine}/nvidiactl is not there"
    assert not has_kernel_part()


@pytest.mark.parametrize("sign", ["nvidiactl", "dxg"])
def test_a_device_and_a_library_are_a_driver(sign: str, machine: Path) -> None:
    (machine / sign).touch()
    assert not has_real_driver()
    put(machine / "usual")
    assert has_real_driver()


@pytest.mark.parametrize("sign", ["version", "nvidiactl", "dxg"])
def test_what_a_container_without_gpus_shows_of_its_machine_is_none(
    sign: str, machine: Path
) -> None:
    (machine / sign).touch()
    assert has_kernel_part()
    words = real_driver.why_no_driver()
    assert words == f"{machine}/{sign} is there, but no {LIBCUDA} is where programs look for it"


def test_a_library_of_the_image_is_none_without_a_device(machine: Path) -> None:
    (machine / "version").touch()
    put(machine / "usual")  # as in an image with the packages for newer CUDA
    assert "nor nvidia-modprobe that makes it" in real_driver.why_no_driver()
    (machine / "modprobe").touch()  # before the first use after the machine was started
    assert has_real_driver()


@pytest.mark.parametrize("where", ["usual", "without_a_cache", "variable", "variable;", "cache"])
def test_a_library_is_looked_for_where_the_loader_does(
    where: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine / "nvidiactl").touch()
    folder = put(machine / ("without_a_cache" if where == "without_a_cache" else "usual"))
    monkeypatch.setattr(real_driver, "_USUAL", (folder,) if where == "usual" else ())
    if where.startswith("variable"):
        text = f"/none{where[8:] or ':'}{folder}"
        monkeypatch.setenv(environment.LIBRARY_PATH, text)
    if where == "cache":
        listed = f"magic\0{LIBCUDA}\0/gone/{LIBCUDA}\0{folder}/{LIBCUDA}\0"
        (machine / "cache").write_bytes(listed.encode())
    assert has_real_driver()


def test_a_library_that_is_listed_and_gone_is_none(machine: Path) -> None:
    (machine / "nvidiactl").touch()
    (machine / "cache").write_bytes(f"{LIBCUDA}\0/gone/{LIBCUDA}\0".encode())
    put(machine / "without_a_cache")
    assert not has_real_driver()


def test_neither_the_phantom_nor_a_stub_is_a_driver(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine / "nvidiactl").touch()
    phantom = Path(native_libs.PHANTOM_DRIVER)
    assert phantom.exists()
    monkeypatch.setenv(environment.LIBRARY_PATH, f"{phantom.parent}/:{put(machine / 'stubs')}/")
    assert not has_real_driver()
