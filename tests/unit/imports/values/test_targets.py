"""What an audit imports: every module as it is, then once more for each hidden library."""

from __future__ import annotations

from pytest_cudafork.imports.values.targets import FoundModule, Target, targets_of


def test_a_target_is_named_by_package_module_and_hidden_library() -> None:
    assert Target("pkg", "pkg.one").nodeid == "pkg::pkg.one"
    assert Target("pkg", "pkg.one", "a+b").nodeid == "pkg::pkg.one[without a+b]"


def test_each_package_comes_as_it_is_and_then_with_each_library_hidden() -> None:
    modules = [FoundModule("pkg", "/pkg/__init__.py", is_package=True), FoundModule("pkg.a", "")]
    other = [FoundModule("other", "/other.py")]
    assert [each.nodeid for each in targets_of({"pkg": modules, "other": other}, ["lib"])] == [
        "pkg::pkg",
        "pkg::pkg.a",
        "pkg::pkg[without lib]",
        "pkg::pkg.a[without lib]",
        "other::other",
        "other::other[without lib]",
    ]
    assert len(targets_of({"pkg": modules})) == 2
