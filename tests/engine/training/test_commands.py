"""One run of all commands, and what does not import them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine.support.programs import run_python
from tools.training import evaluate, train_eagle
from tools.training import train as train_module


def test_the_commands_make_a_model_that_the_engine_loads_and_a_card(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    common = ["--device", "cpu", "--steps", "2", "--batch", "2", "--source", str(library)]
    short = ["--window", "32", "--max-bytes", "4000"]

    train_module.main([*common, *short, "--out", str(out), "--check-tokens", "256"])
    train_eagle.main([*common, *short, "--model", str(out), "--texts", "4", "--prompt", "8"])
    evaluate.main(
        [
            *("--model", str(out), "--source", str(library), "--device", "cpu", "--window", "64"),
            *("--max-bytes", "600", "--prompts", "2", "--continuation", "12", "--card"),
        ]
    )

    results = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
    assert results["parameters"] == 3_198_336
    assert 1 < results["bits_per_byte"] < 9
    assert set(results["head"]["greedy"]) == {"1", "2", "3", "4", "5"}
    assert results["bytes"] + results["head"]["bytes"] < 8_000_000
    card = (out / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert f"**{results['bits_per_byte']:.3f}**" in card
    assert "PSF licence" in card
    assert "$" not in card
    assert "validation" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {
        "config.json",
        "model.safetensors",
        "eagle.safetensors",
        "train.json",
        "train_eagle.json",
        "evaluation.json",
        "MODEL_CARD.md",
    }


def test_a_card_without_its_trainings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--card needs train\.json"):
        evaluate.main(["--model", str(tmp_path), "--device", "cpu", "--card"])


def test_nothing_of_the_engine_imports_the_training() -> None:
    script = (
        "import sys, sample_engine.model.loading, sample_engine.engine_core, sample_engine.llm; "
        "print([name for name in sys.modules if 'training' in name])"
    )

    done = run_python(script)

    assert done.returncode == 0, done.stderr
    assert "tools" not in done.stdout
    assert "sample_engine" not in done.stdout
