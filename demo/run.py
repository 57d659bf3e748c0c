"""Runs the demo: its sessions, two at a time, each printed when it ends.

    python demo/run.py

Exit status 0: everything came out as expected; 1: something did not, and the last line says so.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AT_ONCE = 2
"""Sessions at a time: the smallest machines have two cores, and importing torch takes one."""


def main() -> int:
    """Show everything and return the exit status."""
    sys.path.insert(0, str(ROOT))  # the script's own folder is there, and the checkout is not
    from demo import page
    from demo.cases import SECTIONS, all_cases
    from demo.outcome import Result, judge
    from demo.session import run

    begin = time.monotonic()
    printer = page.Page(sys.stdout)
    printer.title()
    cases = all_cases()
    results = []
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        pending = [(case, pool.submit(run, case)) for case in cases]
        for section in SECTIONS:
            printer.section(section)
            for case, future in pending:
                if case.section is section:
                    seen = future.result()
                    result = Result(case, seen, judge(case, seen))
                    results.append(result)
                    printer.result(result)
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, start no more of them
    printer.verdict(results, time.monotonic() - begin)
    return 1 if any(result.differs for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
