"""The values of the options about memory of GPUs."""

from __future__ import annotations

import pytest

from pytest_cudafork.settings.gpu_options import GPU_OPTIONS, parse_gib, parse_profile


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("1", 1 << 30), ("0.5", 1 << 29)])
def test_memory_is_a_number_of_gib(text: str, size: int) -> None:
    assert parse_gib(text) == size


@pytest.mark.parametrize("text", ["", "1GiB", "-1", "nan", "inf", "much"])
def test_anything_else_is_no_memory(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of GiB, as in 1 or"):
        parse_gib(text)


def test_the_flag_alone_allows_one_gib() -> None:
    (settle,) = [option for option in GPU_OPTIONS if option.name == "cuda_fork_settle"]
    assert parse_gib(str(settle.flag_value)) == 1 << 30


def test_a_profile_has_a_name() -> None:
    assert parse_profile("/x/p.json") == "/x/p.json"
    with pytest.raises(ValueError, match="it needs the name of a file"):
        parse_profile("")
