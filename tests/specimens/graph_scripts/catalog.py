"""The list of scripts, with what a look at their captures must say of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.specimens.plain_graphs.catalog import Verdict

__all__ = ["CATALOG", "HOME", "MARKER", "Script"]

MARKER = "# named"
"""The comment on a line that a finding of a script may name."""

HOME = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Script:
    """One script.

    Attributes:
        name: the module in ``scripts/``.
        verdict: what must be said of it; None: it is right, and nothing may be said.
        why: what is wrong with it, or what looks wrong and is right.
        instead: the verdict that it gets, where that is another one than was meant, and the reason.

    """

    name: str
    verdict: Verdict | None
    why: str
    instead: tuple[Verdict | None, str] | None = None

    @property
    def said(self) -> Verdict | None:
        """What is said of it; None: nothing."""
        return self.verdict if self.instead is None else self.instead[0]

    @property
    def named_lines(self) -> tuple[str, ...]:
        """The marked lines as ``file:line``."""
        text = (HOME / f"{self.name}.py").read_text(encoding="utf-8")
        return tuple(
            f"{self.name}.py:{number}"
            for number, line in enumerate(text.splitlines(), start=1)
            if line.rstrip().endswith(MARKER)
        )


_ERROR, _SUSPICION, _REFUSED = Verdict.ERROR, Verdict.SUSPICION, Verdict.REFUSED

CATALOG = (
    Script("averaged_weights_swapped", _ERROR, "weights get other memory by .data"),
    Script("branch_on_values", _REFUSED, "the host asks the device within the capture"),
    Script("buckets_one_pool", None, "graphs of one pool, whose results are copied at once"),
    Script("buckets_out_of_order", _ERROR, "the graph that was captured first overwrites a result"),
    Script(
        "buckets_results_kept",
        _ERROR,
        "a result is read after another graph of its pool ran",
        instead=(None, "the script has no bug: its detached result keeps the memory for itself"),
    ),
    Script("cache_grows", _ERROR, "the cache that the graph writes is freed"),
    Script("decode_loop", None, "position and cache change with each replay, on the device"),
    Script("decode_position_on_host", _SUSPICION, "the position is another number in eager runs"),
    Script(
        "draft_and_target",
        None,
        "two graphs hand tokens on, and the host reads a count",
        instead=(_ERROR, "the script has a bug that was not meant: nothing holds the two tables"),
    ),
    Script("drawn_lengths", _SUSPICION, "offsets of drawn lengths that have changed are kept"),
    Script("first_answer_of_the_capture", _ERROR, "a result is read before the first replay"),
    Script("graphed_callables", None, "make_graphed_callables, trained"),
    Script("lazy_length_mask", _ERROR, "a mask of lengths that have changed is kept"),
    Script("lazy_rotary_table", None, "a table of the warm-up, which follows from no input"),
    Script("longest_read_before", _SUSPICION, "a number in the graph was read from lengths"),
    Script("noise_of_a_generator", None, "a generator of its own is registered with the graph"),
    Script("operator_of_an_engine", None, "an operator with Python code for CUDA alone"),
    Script("padding_filled", None, "rows behind the batch are refilled, too"),
    Script("padding_left_over", _SUSPICION, "rows behind the batch say where the graph writes"),
    Script("piecewise", None, "eager attention between two graphs, over static buffers"),
    Script("pieces_run_through", None, "results of captures are computed with, and thrown away"),
    Script("piecewise_handed_over", _ERROR, "what the graph reads is freed, and made anew"),
    Script("plan_of_the_first_batch", _ERROR, "offsets of lengths that have changed are kept"),
    Script("plan_refreshed", None, "offsets are planned before each replay, in place"),
    Script("replayed_by_a_worker", None, "another thread than the one that captures replays"),
    Script("sampling_and_dropout", None, "each replay draws other random numbers"),
    Script("sampling_seeded_each_step", _SUSPICION, "each replay begins with the same seed"),
    Script("side_streams_joined", None, "two streams in one capture, forked and joined"),
    Script(
        "side_stream_warm_up",
        None,
        "warm-up on a side stream, results copied by the caller",
        instead=(_ERROR, "the script has a bug that was not meant: nothing holds the model"),
    ),
    Script("training_schedule", _SUSPICION, "the learning rate in the graph is not the schedule's"),
    Script("training_schedule_on_device", None, "the learning rate is a tensor that the graph reads"),
    Script("training_step", None, "forward, backward and optimizer in one graph"),
    Script("weights_assigned", _ERROR, "weights become other tensors, and the old ones are freed"),
    Script("weights_reloaded", None, "weights are loaded in place between replays"),
    Script("weights_swapped", _ERROR, "weights get other memory by a swap"),
)
