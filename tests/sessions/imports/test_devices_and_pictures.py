"""An audit's devices and pictures, and values of its options that cannot be."""

from __future__ import annotations

import pytest

from pytest_cudafork.settings.real_driver import has_real_driver
from tests.support.imports import (
    SHOP,
    run_audit,
    write_package,
)

IMPORTS = "--cuda-fork-imports=shop"


@pytest.fixture
def shop(pytester: pytest.Pytester) -> pytest.Pytester:
    write_package(pytester.path, "shop", SHOP)
    return pytester


def test_without_a_gpu_in_sight(shop: pytest.Pytester) -> None:
    session = run_audit(shop, IMPORTS, "--cuda-fork-device=phantom", "-k", "flash or clean")
    assert session.verdicts == {"shop.clean": "clean", "shop.flash": "touches"}
    assert "phantom (no GPU)" in session.out


@pytest.mark.skipif(has_real_driver(), reason="there is a driver here")
def test_the_real_driver_must_be_there(shop: pytest.Pytester) -> None:
    session = run_audit(shop, IMPORTS, "--cuda-fork-device=real")
    assert session.result.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines(["*--cuda-fork-device=real*no NVIDIA driver*"])


def test_pictures_are_written(shop: pytest.Pytester) -> None:
    page = run_audit(shop, IMPORTS, "--cuda-fork-imports-graph=g.html")
    assert f"graph: {shop.path}/g.html" in page.section()
    assert "shop.models.big" in (shop.path / "g.html").read_text()
    run_audit(shop, IMPORTS, "--cuda-fork-imports-graph=g.dot", "-k", "flash or layers")
    assert '"shop.layers" -> "shop.flash"' in (shop.path / "g.dot").read_text()


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("graph=no/such/g.html", "the graph cannot be written: there is no folder *no/such'"),
        ("graph=g.svg", "*-graph: 'g.svg' is not a picture: *.html or .dot"),
        ("timeout=0", "*-timeout: '0' is not a number of seconds above 0"),
        ("jobs=many", "*-jobs: 'many' is not a number of processes*"),
        ("memory=lots", "*-memory: 'lots' is not a size*"),
        ("exclude=a b", "*-exclude: 'a b' is not a pattern*"),
        ("without=a+", "*-without: 'a+' is not a library*"),
    ],
)
def test_options_that_cannot_be(shop: pytest.Pytester, option: str, complaint: str) -> None:
    session = run_audit(shop, IMPORTS, f"--cuda-fork-imports-{option}")
    assert session.result.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines([f"*{complaint}"])
    assert session.reports == []


def test_a_picture_that_cannot_be_written_fails_the_session(shop: pytest.Pytester) -> None:
    late = "\ndef pytest_collection_finish(session): (session.config.rootpath / 'g.html').mkdir()\n"
    args = (IMPORTS, "--cuda-fork-imports-graph=g.html", "-k", "clean")
    session = run_audit(shop, *args, conftest=late)
    assert session.result.ret == pytest.ExitCode.TESTS_FAILED
    assert any(line.startswith("the graph cannot be written: ") for line in session.section())
    session = run_audit(shop, *args)
    assert session.result.ret == pytest.ExitCode.USAGE_ERROR, "it is there before the audit"


def test_nothing_left_to_audit_is_an_error(shop: pytest.Pytester) -> None:
    session = run_audit(shop, IMPORTS, "--cuda-fork-imports-exclude=other,sho?")
    assert session.result.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines(["*nothing is left of 'shop': it is excluded by *sho[?]"])
