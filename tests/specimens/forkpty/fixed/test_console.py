"""The status line reaches the terminal."""

from console.status import status_line
from console.terminal import run_in_terminal


def test_status_line_is_shown():
    assert run_in_terminal(status_line()).startswith("GPUs:")
