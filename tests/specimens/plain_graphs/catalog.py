"""The list of plain graph programs, with what a look at their captures must say of each.

Written down before any check had run on them; the code of each is the module of its name.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from tests.specimens.specimen import Form

__all__ = ["CATALOG", "HOME", "MARKER", "PlainGraph", "Verdict", "form"]

MARKER = "# capture: named"
"""The comment on a line that a finding may name, so that no number is written twice."""

HOME = Path(__file__).parent


class Verdict(enum.Enum):
    """What is said of a buggy program."""

    ERROR = "error"
    """The test fails, and a marked line is named."""
    SUSPICION = "suspicion"
    """The test passes, and the section names a marked line."""
    REFUSED = "refused"
    """The capture itself fails, on a marked line, whether captures are looked at or not."""
    OUT_OF_REACH = "out of reach"
    """Nothing is said: it takes a comparison with eager code."""


@dataclass(frozen=True)
class PlainGraph:
    """One specimen as a program.

    Attributes:
        name: the module, and the specimen in ``tests/specimens/graphs`` whose bug it has.
        verdict: what must be said of the buggy form.
        why: what is seen of it; or why nothing can be.
        caught_by: the check of the plugin that catches the specimen where this one is out of reach.
        instead: the verdict that it gets, where that is another one than was meant, and the reason.
        streams: whether it is about what the software graph does not know of streams.

    """

    name: str
    verdict: Verdict
    why: str
    caught_by: str = ""
    instead: tuple[Verdict, str] | None = None
    streams: bool = False

    @property
    def said(self) -> Verdict:
        """What is said of the buggy form."""
        return self.verdict if self.instead is None else self.instead[0]

    @property
    def named_lines(self) -> tuple[str, ...]:
        """The marked lines of the buggy form as ``file:line``."""
        path = HOME / "buggy" / f"{self.name}.py"
        return tuple(
            f"{path.name}:{number}"
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
            if line.rstrip().endswith(MARKER)
        )


def form(name: str) -> Form:
    """Return the programs in their ``buggy`` or ``fixed`` form, all in one folder."""
    buggy, fixed = HOME / "buggy", HOME / "fixed"
    return Form((buggy,) if name == "buggy" else (buggy, fixed))


_ERROR, _SUSPICION, _REFUSED = Verdict.ERROR, Verdict.SUSPICION, Verdict.REFUSED
_PAIR, _REPLAY = "capture_pair", "assert_replay_equals_eager"
_PLACES = "rows of an earlier batch say where the graph writes, which can be seen"


def _out_of_reach(name: str, why: str, caught_by: str) -> PlainGraph:
    return PlainGraph(name, Verdict.OUT_OF_REACH, why, caught_by)


CATALOG = (
    PlainGraph("attribute_rebound", _ERROR, "the mean that the graph reads is freed when rebound"),
    PlainGraph("autotune_in_capture", _REFUSED, "the tuner asks the device in the capture"),
    PlainGraph("bool_mask", _REFUSED, "the mask asks the device in the capture"),
    _out_of_reach(
        "buffer_overrun",
        "both buffers lie in one allocation, and every byte that is read was written by somebody",
        _REPLAY,
    ),
    PlainGraph("cached_planner", _ERROR, "the plan is of lengths that have changed"),
    PlainGraph("cold_handle", _REFUSED, "the handle asks the device in the capture"),
    PlainGraph("default_stream", _REFUSED, "CUDA refuses the default stream", streams=True),
    _out_of_reach(
        "draft_rollback",
        "the branch that was not taken leaves nothing in the graph, and its answers are in range",
        _REPLAY,
    ),
    PlainGraph(
        "draft_step_padding",
        Verdict.OUT_OF_REACH,
        "a padded row looks like any other: old contents, in range",
        instead=(_SUSPICION, _PLACES),
    ),
    PlainGraph("eager_indptr", _ERROR, "the pointers that the graph reads are of old lengths"),
    PlainGraph("flashmla_planner", _ERROR, "the plan is of lengths that have changed"),
    PlainGraph("fresh_tensor_producer", _ERROR, "the input that the graph reads is freed"),
    PlainGraph("frozen_seed", _SUSPICION, "the seed was another number in the warm-up"),
    PlainGraph("growing_workspace", _ERROR, "the workspace that the graph writes is freed"),
    PlainGraph("host_block_list", _SUSPICION, "the blocks are other numbers in the eager run"),
    PlainGraph("host_position", _SUSPICION, "the position was another number in the warm-up"),
    PlainGraph("item_in_step", _REFUSED, "the number is read from the device in the capture"),
    _out_of_reach(
        "kv_lens_mutated",
        "the graph lengthens what it reads, as it should; who else did so is a matter of intent",
        _PAIR,
    ),
    _out_of_reach(
        "kv_writer_padding", "slot -1 is the last one of the cache, which may be meant", _REPLAY
    ),
    PlainGraph(
        "last_token_indices",
        Verdict.OUT_OF_REACH,
        "rows that were not refilled hold old contents, in range",
        instead=(_SUSPICION, _PLACES),
    ),
    PlainGraph("layer_plan", _ERROR, "the plan is of lengths that have changed"),
    PlainGraph("lora_mapping", _ERROR, "the mapping that the graph reads is freed when rebound"),
    PlainGraph(
        "max_seqlen_frozen",
        _SUSPICION,
        "the length is another number in the eager run",
        instead=(
            Verdict.OUT_OF_REACH,
            "a number that bounds a slice differs between graphs for batches of two sizes, too",
        ),
        caught_by=_REPLAY,
    ),
    PlainGraph("memoised_forward", _ERROR, "the graph holds nothing, so a replay changes nothing"),
    _out_of_reach(
        "metadata_views", "the buffers hold a whole batch, though another descriptor's", _PAIR
    ),
    _out_of_reach(
        "optional_input", "an input that was not refilled may be one that stays", _REPLAY
    ),
    _out_of_reach(
        "padded_size_key", "the offsets are of numbers of the host, and of the right size", _PAIR
    ),
    PlainGraph("plan_not_refreshed", _ERROR, "the plan is of pages that have changed"),
    PlainGraph("planner_outside_graph", _ERROR, "the plan is of lengths that have changed"),
    PlainGraph(
        "positions_not_reset",
        Verdict.OUT_OF_REACH,
        "rows that were not reset hold old contents, in range",
        instead=(_SUSPICION, _PLACES),
    ),
    PlainGraph("shared_workspace_owner", _ERROR, "the workspace that the graph uses is freed"),
    PlainGraph("side_stream_unjoined", _REFUSED, "CUDA refuses the unjoined work"),
    PlainGraph("speculator_prefill", _ERROR, "the plan is of lengths that have changed"),
    _out_of_reach(
        "staging_recycled",
        "filling pinned memory anew before a replay is how graphs are given numbers",
        _REPLAY,
    ),
    PlainGraph(
        "topk_buffer",
        _ERROR,
        "fresh memory is read where nothing has written",
        instead=(_SUSPICION, "a half of it was written, and who masks the rest means it so"),
    ),
    _out_of_reach("ubatch_key", "which graph a batch should get is a matter of intent", _PAIR),
    PlainGraph("warmup_divergence", _REFUSED, "the cold variant loads host data in the capture"),
    PlainGraph("workspace_lru", _ERROR, "the workspace that the graph writes is freed"),
    PlainGraph("workspace_resize", _ERROR, "the workspace's memory has moved"),
)
