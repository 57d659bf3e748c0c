"""The verdicts are the same whatever the order of imports and the number of workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.imports import (
    TOUCH,
    XDIST,
    Session,
    audit_here,
    needs_xdist,
    run_audit,
    verdicts_of,
    write_package,
)

SHUFFLE = """
import random
def pytest_collection_modifyitems(items):
    random.shuffle(items)
"""


def _facts(session: Session) -> set[tuple[str, str, str, str]]:
    facts = {
        (record["module"], record["verdict"], record["where"], record["reason"])
        for record in session.records
    }
    assert len(facts) == len(session.records)
    return facts


def _web(count: int) -> dict[str, str]:
    """Return a package in which many import many, some touch, and some fail."""
    files = {"__init__": "import os", "sub/__init__": "from web import m0"}
    for number in range(count):
        lines = [f"from web import m{other}" for other in range(number % 7, number, 9)]
        lines += {0: [], 5: [TOUCH], 8: ["raise ImportError('eight')"]}.get(number % 13, [])
        files[f"{'sub/' if number % 11 == 3 else ''}m{number}"] = "\n".join(lines)
    return files


@needs_xdist
def test_the_same_verdicts_whatever_the_order_and_the_number_of_workers(
    pytester: pytest.Pytester,
) -> None:
    write_package(pytester.path, "web", _web(40))
    args = ("--cuda-fork-imports=web",)
    first = run_audit(pytester, *args)
    facts = _facts(first)
    assert len(facts) == 42
    assert len({verdict for _, verdict, _, _ in facts}) == 4
    assert _facts(run_audit(pytester, *args, "--cuda-fork-imports-jobs=5")) == facts
    assert _facts(run_audit(pytester, *args, conftest=SHUFFLE)) == facts
    spread = run_audit(pytester, *XDIST, "-n2", *args)
    assert _facts(spread) == facts
    told = [line for line in first.section() if not line.startswith("confirmed")]
    assert [line for line in spread.section() if not line.startswith("confirmed")] == told


@pytest.mark.parametrize("variable", ["PYTORCH_NVML_BASED_CUDA_CHECK", "CUDA_VISIBLE_DEVICES"])
@pytest.mark.parametrize("place", ["settings", "__init__"])
def test_a_variable_that_decides_what_touches_is_found_only_by_those_who_import_what_sets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, place: str
) -> None:
    monkeypatch.delenv(variable, raising=False)
    files = {"__init__": "", "settings": ""}
    files[place] = f"import os; os.environ['{variable}'] = '1'"
    files |= {f"user{number}": "from deciding import settings" for number in range(5)}
    asks = f"import os\nif '{variable}' not in os.environ: {TOUCH}"
    files |= {"asks": asks, "settled": f"from deciding import settings\n{asks}"}
    write_package(tmp_path, "deciding", files)
    verdicts = verdicts_of(audit_here("deciding", tmp_path, confirm=False))
    assert verdicts.pop("deciding.asks") == ("touches" if place == "settings" else "clean")
    assert set(verdicts.values()) == {"clean"}
