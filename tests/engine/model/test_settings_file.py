"""Files of a model's folder: what they hold, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sample_engine.errors import ConfigError
from sample_engine.model.settings_file import read_settings, read_text


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"a": "\u00e9"}', encoding="utf-8")
    assert read_text(path) == '{"a": "\u00e9"}'
    assert read_settings(path) == {"a": "\u00e9"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", r"settings\.json' cannot be read as JSON"),
        (b"[" * 100_000, r"settings\.json' cannot be read as JSON"),
        (b"[]", r"settings\.json' holds no JSON object"),
        (b"\xff", r"settings\.json' cannot be read"),
        (b" " * (1 << 24) + b"{}", "has more than 16777216 bytes"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=words) as refused:
        read_settings(path)
    assert str(refused.value).count("settings.json") == 1  # told once
    with pytest.raises(ConfigError, match="cannot be read"):
        read_text(tmp_path)
