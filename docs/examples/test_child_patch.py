import json
import subprocess
import sys

CODE = "import json, os; print(json.dumps([1]), os.environ['ENGINE_BACKEND'])"


def test_a_program_that_the_test_starts_is_patched(child_patch):
    child_patch.setattr("json.dumps", lambda value: f"patched {value}")
    child_patch.setenv("ENGINE_BACKEND", "eager")
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "patched [1] eager\n"
    assert json.dumps([1]) == "patched [1]"


def test_and_the_next_one_is_not():
    assert json.dumps([1]) == "[1]"
