"""Runs the statements of a pair and forks then, whatever came of them: for ``release_pairs.py``.

What the statements raised, and what torch's flag says of CUDA, is written to a file before the
fork: the check may refuse it, which ends this program.
"""

import json
import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the file that is named first, and write to the one that is named second."""
    program, outcome = sys.argv[1:]
    raised = ""
    try:
        runpy.run_path(program, run_name="__main__")
    except BaseException as error:  # an import of a release may exit, too
        raised = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    torch = sys.modules.get("torch")
    flag = torch is not None and bool(torch.cuda.is_initialized())
    Path(outcome).write_text(json.dumps({"raised": raised, "flag": flag}), encoding="utf-8")
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
