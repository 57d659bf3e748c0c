"""Runs scripts/post.py in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "post.py"


def run_postprocess(text: str) -> str:
    env = os.environ.copy()
    env["TOKENIZERS_PARALLELISM"] = "false"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--text", text],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode != 0:
        raise RuntimeError(f"post-processing failed ({done.returncode}):\n{done.stderr}")
    return done.stdout
