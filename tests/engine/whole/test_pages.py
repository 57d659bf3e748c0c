"""What the pages on the engine show in Python runs: with a core that repeats its prompt."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any

import pytest

import sample_engine
from sample_engine.llm import LLM
from tests.engine.support.process import Script

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = sorted(
    page for page in DOCS.rglob("*.md") if "<!-- engine -->" in page.read_text(encoding="utf-8")
)
EXAMPLE = re.compile(r"<!-- engine -->\n```python\n(.*?)```", re.S)
SERVER = "http://127.0.0.1:8000/v1"


def examples(name: str) -> list[str]:
    """Return what a page shows in Python, in its order."""
    (page,) = (page for page in PAGES if page.name == name)
    return EXAMPLE.findall(page.read_text(encoding="utf-8"))


def test_the_pages_with_examples_are_found() -> None:
    engine = {"kv-blocks.md", "server.md", "speculation.md", "steps.md"}
    assert {page.name for page in PAGES} == {"sample_engine.md", "share-kv-blocks.md", *engine}


def test_the_examples_of_the_reference_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted = functools.partial(LLM, core_factory=Script(), worker_method="inproc")
    monkeypatch.setattr(sample_engine, "LLM", scripted, raising=False)
    for page in ("sample_engine.md", "speculation.md", "kv-blocks.md", "steps.md"):
        names: dict[str, Any] = {}
        for example in examples(page):
            exec(compile(example, page, "exec"), names)
        assert "LLM" in names
    assert capsys.readouterr().out.startswith("def quick_sort(def quick_sort(")


@pytest.mark.slow
def test_the_examples_of_shared_blocks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a core, as they read what it counts; it shares little memory, by a name of its own."""
    in_process = functools.partial(LLM, worker_method="inproc")
    monkeypatch.setattr(sample_engine, "LLM", in_process, raising=False)
    names: dict[str, Any] = {}
    for example in examples("share-kv-blocks.md"):
        small = example.replace("4 << 30", "1 << 22").replace("my-service", f"pages-{os.getpid()}")
        exec(compile(small, "how-to", "exec"), names)
    names["llm"].shutdown()
    assert names["shared"].kv_connector == "RedisConnector"


def test_a_client_gets_from_the_server_what_the_page_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("fastapi", reason="the server needs it")
    pytest.importorskip("uvicorn", reason="the server needs it")
    pytest.importorskip("openai", reason="it needs Python 3.11")
    from tests.engine.support.serving import serving

    (example,) = examples("server.md")
    with serving() as server:
        exec(compile(example.replace(SERVER, server.url), "server.md", "exec"), {})
    assert capsys.readouterr().out.startswith("def quick_sort(")
