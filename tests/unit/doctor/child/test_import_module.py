"""The script that imports one module and says what came of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pytest_cudafork.doctor.child import import_module


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '1.2'", {"error": "", "version": "1.2"}),
        ("print('noise')", {"error": "", "version": ""}),
        (
            "raise ImportError('undefined symbol')",
            {"error": "ImportError: undefined symbol", "version": ""},
        ),
        ("raise SystemExit(3)", {"error": "SystemExit: 3", "version": ""}),
    ],
)
def test_what_came_of_it_is_in_the_file(
    text: str, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "warez_to_import"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    Path(f"{name}.py").write_text(text)
    try:
        import_module.main(name, "report.json", [str(tmp_path), *sys.path])
    finally:
        sys.modules.pop(name, None)
    assert json.loads(Path("report.json").read_text()) == expected
