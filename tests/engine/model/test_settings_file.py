"""Files of a model's folder: what they hold, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sample_engine.errors import ConfigError
from sample_engine.model.settings_file import is_there, read_settings, read_text, why_no_file
from tests.engine.support.no_file import no_file


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


def test_a_file_is_there_or_not(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    assert not is_there(path)
    path.write_text("{}", encoding="utf-8")
    assert is_there(path)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    assert is_there(link)
    assert not is_there(path / "more.json")
    assert not is_there(tmp_path / "a\0b")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("dangling", "is a link to '/no/such/blob', which is not there"),
        ("loop", "cannot be looked at"),
        ("folder", "is no file, but a folder, a pipe or a device"),
        ("pipe", "is no file, but a folder, a pipe or a device"),
        ("device", "is no file, but a folder, a pipe or a device"),
    ],
)
def test_what_has_the_name_of_a_file_and_is_none_is_told(
    kind: str, words: str, tmp_path: Path
) -> None:
    path = no_file(tmp_path / "settings.json", kind)
    with pytest.raises(ConfigError, match=words) as refused:
        is_there(path)
    assert str(refused.value).startswith(f"{str(path)!r} ")
    assert words in (why_no_file(path) or "")
