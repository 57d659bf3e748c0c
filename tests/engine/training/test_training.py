"""Tests of the training: corpus, optimizer, loop, measures, and one run of all commands."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sample_engine.errors import ConfigError, EngineError
from sample_engine.model.llama import Llama
from tests.engine.support.model import SMALL, packed_attend, plain_llama, random_llama
from tools.training import evaluate, loop, train_eagle
from tools.training import train as train_module
from tools.training.corpus import Corpus, Windows, load_corpus, split_of
from tools.training.generate import continued
from tools.training.measure import bits_per_byte
from tools.training.optimizer import Optimizer, OptimizerSettings, orthogonalized


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return a small library: modules of every split, tests, and what is to be left out."""
    root = tmp_path / "library"
    wanted = {"train": 50, "validation": 8, "held_out": 8, "tests": 24}
    for index in itertools.count():
        name = f"package/{'' if index % 3 else 'test/'}module_{index}.py"
        if wanted[split_of(name)] == 0:
            continue
        wanted[split_of(name)] -= 1
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        text = f"def function_{index}(a, b):\n    return a + b * {index}\n\n\n" * 12
        (root / name).write_text(text, encoding="utf-8")
        if not any(wanted.values()):
            break
    for name in ("site-packages/other.py", "encodings/cp1.py", "_sysconfigdata_x.py", "notes.txt"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("left_out = True\n", encoding="utf-8")
    (root / "package" / "latin.py").write_bytes(b"# \xe9t\xe9\n")
    (root / "package" / "empty.py").write_text("\n", encoding="utf-8")
    return root


# Corpus


def test_no_file_of_this_python_is_on_two_sides() -> None:
    corpus = load_corpus()

    texts = {
        name: bytes(getattr(corpus, name).clamp(max=255).to(torch.uint8).numpy())
        for name in ("train", "validation", "held_out", "tests")
    }
    files = {name: set(text.split(b"\xff")) - {b""} for name, text in texts.items()}
    for name in ("validation", "held_out"):
        others = set().union(*(files[other] for other in files if other != name))
        assert files[name]
        assert not files[name] & others
    assert 0.01 < len(texts["held_out"]) / len(texts["train"]) < 0.15
    assert corpus.facts["held_out_files"] == len(files["held_out"])


def test_the_split_depends_on_the_path_alone() -> None:
    # Pinned: weights that were trained once must keep their held-out files for ever.
    assert [
        split_of(path)
        for path in ("tarfile.py", "bisect.py", "argparse.py", "test/test_tarfile.py")
    ] == ["held_out", "validation", "train", "tests"]
    assert split_of("json/tests/test_decode.py") == "tests"
    assert split_of("unittest/test.py") != "tests"


def test_files_end_with_a_token_and_others_are_left_out(library: Path) -> None:
    corpus = load_corpus(library)

    parts = [getattr(corpus, name) for name in ("train", "validation", "held_out", "tests")]
    assert sum(int((part == 256).sum()) for part in parts) == 90
    assert all(int(part[-1]) == 256 for part in parts)
    assert not any(b"left_out" in bytes(part[part < 256].to(torch.uint8).numpy()) for part in parts)
    assert corpus.facts["source"] == "library"
    assert load_corpus(library).facts == corpus.facts


def test_a_text_that_is_held_out_is_not_trained_on_under_another_name(library: Path) -> None:
    before = load_corpus(library)
    names = [path.relative_to(library).as_posix() for path in library.rglob("*.py")]
    held_out = next(name for name in names if split_of(name) == "held_out")
    copy = next(f"copy_{i}.py" for i in range(99) if split_of(f"copy_{i}.py") == "train")
    (library / copy).write_bytes((library / held_out).read_bytes())

    after = load_corpus(library)

    assert torch.equal(after.train, before.train)
    assert torch.equal(after.held_out, before.held_out)


def test_a_folder_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("one = 1\n", encoding="utf-8")

    with pytest.raises(ConfigError, match=r"has no Python files for the split .*lib/python3\.12"):
        load_corpus(tmp_path)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(20, 200),
    size=st.integers(1, 10),
    aligned=st.booleans(),
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=4),
)
def test_windows_cover_a_corpus_evenly(
    length: int, size: int, aligned: bool, counts: list[int]
) -> None:
    drawn = Windows(torch.arange(length), size, 0, aligned)

    windows = torch.cat([drawn.next(count) for count in counts])

    assert windows.shape == (sum(counts), size)
    assert torch.equal(windows, windows[:, :1] + torch.arange(size))
    if aligned:
        assert not (windows[:, 0] % size).any()
    first_epoch = windows[: (length - size) // size].flatten()
    assert len(first_epoch.unique()) == len(first_epoch)
    same = Windows(torch.arange(length), size, 0, aligned)
    assert torch.equal(torch.cat([same.next(count) for count in counts]), windows)


def test_a_corpus_smaller_than_its_windows_is_refused() -> None:
    with pytest.raises(ConfigError, match="19 tokens is too small for windows of 10"):
        Windows(torch.arange(19), 10, 0)


# Optimizer


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 40), (2, 40, 8), (1, 1, 5)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 1e-3

    values = torch.linalg.svdvals(orthogonalized(matrices))

    assert 0.75 < float(values.min()) <= float(values.max()) < 1.25


def test_fused_projections_move_as_the_matrices_that_they_are() -> None:
    model = random_llama().requires_grad_(True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = Optimizer(model, OptimizerSettings(muon_rate=0.1, weight_decay=0.0))
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)

    optimizer.step(0.5)

    moved = {name: before[name] - value for name, value in model.state_dict().items()}
    rows = {"self_attn.qkv_proj": [48, 16, 16], "mlp.gate_up_proj": [40, 40]}
    for name, cuts in rows.items():
        for part in moved[f"layers.1.{name}.weight"].split(cuts):
            scale = max(1, part.shape[0] / part.shape[1]) ** 0.5
            values = torch.linalg.svdvals(part) / (0.05 * scale)
            assert 0.75 < float(values.min()) <= float(values.max()) < 1.25
    assert all(bool(value.abs().sum() > 0) for value in moved.values())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_weight_decay_pulls_matrices_towards_zero() -> None:
    model = random_llama().requires_grad_(True)
    before = model.layers[0].mlp.down_proj.weight.detach().clone()
    norms = model.norm.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    Optimizer(model, OptimizerSettings(muon_rate=0.1, weight_decay=0.5)).step(1.0)

    torch.testing.assert_close(model.layers[0].mlp.down_proj.weight.detach(), before * 0.95)
    assert torch.equal(model.norm.weight.detach(), norms)


# Loop


class Runs:
    """What a loop calls, and what it called."""

    def __init__(self, loss: Callable[[int], float], checks: Callable[[int], float]) -> None:
        self.factors: list[float] = []
        self.kept: list[int] = []
        self._loss, self._checks, self._checked = loss, checks, 0

    def update(self, factor: float) -> Tensor:
        self.factors.append(factor)
        return torch.tensor(self._loss(len(self.factors)))

    def check(self) -> float:
        self._checked += 1
        return self._checks(self._checked)

    def keep(self) -> None:
        self.kept.append(len(self.factors))

    def run(self, budget: loop.Budget) -> loop.Outcome:
        return loop.run(
            update=self.update,
            check=self.check,
            keep=self.keep,
            budget=budget,
            tokens_per_step=1,
        )


def test_the_loop_takes_its_steps_and_keeps_what_is_best() -> None:
    runs = Runs(lambda step: 1.0, lambda number: abs(number - 7) + 0.5)

    outcome = runs.run(loop.Budget(seconds=1, steps=200))

    assert (outcome.steps, len(runs.factors), outcome.interrupted) == (200, 200, False)
    assert runs.kept == [20, 40, 60, 80, 100, 120, 140]
    assert outcome.best == 0.5


def test_the_loop_ends_with_its_time() -> None:
    runs = Runs(lambda step: 1.0, lambda number: 1.0)

    outcome = runs.run(loop.Budget(seconds=0.4))

    assert 0.3 < outcome.seconds < 5
    assert runs.kept
    assert runs.factors[-1] < 0.3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_loop_with_the_weights_of_that_moment(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    def loss(step: int) -> float:
        if step == 13:
            os.kill(os.getpid(), number)
        return 1.0

    runs = Runs(loss, lambda number: 1.0)
    outcome = runs.run(loop.Budget(seconds=60, steps=10**9))

    assert outcome.interrupted
    assert outcome.steps == 13
    assert runs.kept == [13]
    assert signal.getsignal(number) is before


def test_a_loss_that_is_no_number_ends_the_loop_with_the_best_so_far() -> None:
    runs = Runs(lambda step: math.nan if step >= 50 else 1.0, lambda number: 1.0 / number)

    outcome = runs.run(loop.Budget(seconds=60, steps=200))

    assert outcome.steps == 50
    assert runs.kept == [20, 40]


def test_a_loop_that_never_had_a_number_is_an_error() -> None:
    runs = Runs(lambda step: math.nan, lambda number: math.nan)

    with pytest.raises(EngineError, match="stopped at step 10 with nothing worth keeping"):
        runs.run(loop.Budget(seconds=60, steps=200))


@given(spent=st.floats(0, 2), later=st.floats(0, 1), step=st.integers(0, 10**6))
def test_the_schedule_warms_up_and_ends_at_zero(spent: float, later: float, step: int) -> None:
    factor = loop.schedule(spent, step)

    assert 0 <= factor <= 1
    assert loop.schedule(spent + later, step) <= factor
    assert loop.schedule(spent, step + 1) >= factor
    assert loop.schedule(1.0, step) == 0
    assert loop.schedule(0.3, 1000) == 1


def test_a_compiler_that_fails_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here")

    def loss_of(windows: Tensor) -> Tensor:
        return windows.sum()

    monkeypatch.setattr(torch, "compile", fails)

    assert loop.compiled(loss_of, torch.ones(1), wanted=True) is loss_of
    assert "no compiler here" in caplog.text
    assert loop.compiled(loss_of, torch.ones(1), wanted=False) is loss_of


# Measures


def test_a_model_that_knows_nothing_pays_for_every_token_once() -> None:
    model = random_llama()
    model.norm.weight.data.zero_()
    tokens = torch.randint(257, (150,), generator=torch.Generator().manual_seed(0))

    for overlap in (True, False):
        for window in (8, 32, 256):
            found = bits_per_byte(model, tokens, window=window, overlap=overlap, batch=3)
            assert found.bits == pytest.approx(149 * math.log2(257))
            assert found.num_bytes == int((tokens[1:] < 256).sum())
            assert found.value == pytest.approx(found.bits / found.num_bytes)


def test_bits_per_byte_are_those_of_each_token_after_half_a_window() -> None:
    model = random_llama()
    tokens = torch.randint(256, (21,), generator=torch.Generator().manual_seed(1)).tolist()

    found = bits_per_byte(model, torch.tensor(tokens), window=8)

    bits = 0.0
    for index in range(1, 21):
        start = max(0, (index - 1) // 4 * 4 - 4)
        logits = plain_llama(model, tokens[start:index])[2][-1]
        bits -= float(logits.log_softmax(-1)[tokens[index]]) / math.log(2)
    assert found.bits == pytest.approx(bits, rel=1e-4)


def test_greedy_text_is_what_the_whole_model_says_token_by_token() -> None:
    model = random_llama()
    prompts = torch.randint(256, (2, 5), generator=torch.Generator().manual_seed(2))

    texts = continued(model, prompts, 14, 0.0, torch.Generator())

    assert torch.equal(texts[:, :5], prompts)
    for text in texts:
        hidden, _ = model(text, torch.arange(14), packed_attend([14]))
        assert torch.equal(model.compute_logits(hidden).argmax(-1)[4:13], text[5:])


def test_sampled_text_depends_on_the_seed() -> None:
    model, prompts = random_llama(), torch.tensor([[1, 2, 3]])

    first, same, other = (
        continued(model, prompts, 20, 1.0, torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )

    assert torch.equal(first, same)
    assert not torch.equal(first, other)


# Training


def trained(corpus: Corpus, steps: int, **settings: float) -> tuple[Llama, loop.Outcome]:
    """Train a small model on a CPU."""
    seed = int(settings.pop("seed", 0))
    torch.manual_seed(seed)
    model = Llama(SMALL)
    train_module.initialize(model, seed)
    chosen = train_module.ModelSettings(
        window=32,
        batch=4,
        check_tokens=512,
        seed=seed,
        **settings,  # type: ignore[arg-type]
    )
    budget = loop.Budget(seconds=60, steps=steps)
    return model, train_module.train(model, corpus, chosen, budget, lambda: None)


def test_training_learns(library: Path) -> None:
    corpus = load_corpus(library)
    torch.manual_seed(0)
    untrained = Llama(SMALL)
    train_module.initialize(untrained, 0)
    before = bits_per_byte(untrained, corpus.held_out[:512], window=32).value

    model, _ = trained(corpus, 250)

    after = bits_per_byte(model, corpus.held_out[:512], window=32).value
    assert before > 7
    assert after < 3.5


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_seed_gives_the_same_weights_again(library: Path, dropout: float) -> None:
    corpus = load_corpus(library)

    first, same, other = (
        trained(corpus, 6, dropout=dropout, seed=seed)[0].state_dict() for seed in (3, 3, 4)
    )

    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_dropout_is_gone_after_training(library: Path) -> None:
    model, _ = trained(load_corpus(library), 2, dropout=0.5)

    model.train()
    inputs = (torch.arange(6), torch.arange(6), packed_attend([6]))
    assert torch.equal(model(*inputs)[0], model(*inputs)[0])


def test_a_library_without_tests_is_enough(library: Path) -> None:
    for path in (library / "package" / "test").iterdir():
        path.unlink()
    corpus = load_corpus(library)

    _, outcome = trained(corpus, 3)

    assert len(corpus.tests) == 0
    assert outcome.steps == 3


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

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert "tools" not in done.stdout
    assert "sample_engine" not in done.stdout
