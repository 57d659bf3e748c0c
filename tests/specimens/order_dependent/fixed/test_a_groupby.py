"""Grouping on the device, in a process of its own."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_device_is_ready_or_absent():
    script = "from frames.native import device_ready; print(device_ready())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() in ("True", "False")
