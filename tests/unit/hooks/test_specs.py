"""The hooks are typed, documented, and told pytest of."""

from __future__ import annotations

import inspect

import pytest

from pytest_cudafork.hooks import specs

NAMES = {name for name in vars(specs) if name.startswith("pytest_")}


def test_pytest_knows_each_hook_and_a_misspelled_argument_is_told(
    pytester: pytest.Pytester,
) -> None:
    config = pytester.parseconfigure()
    for name in NAMES:
        assert getattr(config.hook, name).spec is not None

    class Wrong:
        def pytest_cudafork_touch(self, tuch: object) -> None:
            """Name an argument that there is not."""

    with pytest.raises(Exception, match="tuch"):
        config.pluginmanager.register(Wrong())


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_argument_is_typed_and_told_with_the_process(name: str) -> None:
    hook = getattr(specs, name)
    text = inspect.getdoc(hook) or ""
    signature = inspect.signature(hook)
    assert signature.return_annotation is not inspect.Signature.empty
    for argument in signature.parameters.values():
        assert argument.annotation is not inspect.Parameter.empty
        assert f"{argument.name}: " in text
    assert "process" in text
