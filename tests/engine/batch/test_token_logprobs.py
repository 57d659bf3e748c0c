"""How likely the tokens of a step were, against the plain rule."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from sample_engine.batch.request import Request  # noqa: E402
from sample_engine.batch.sampling_params import SamplingParams  # noqa: E402
from sample_engine.batch.scheduled_batch import ScheduledBatch, ScheduledRequest  # noqa: E402
from sample_engine.batch.token_logprobs import logprobs_of  # noqa: E402

VOCABULARY = 7
# What a request asks for; its drafts, and how many tokens were certain; whether it samples at all.
PARTS = st.tuples(
    st.none() | st.integers(0, 20), st.integers(0, 3), st.integers(1, 4), st.booleans()
)


@given(st.lists(PARTS, min_size=1, max_size=5), st.integers(0, 2**31))
def test_each_token_has_its_own_row(
    parts: list[tuple[int | None, int, int, bool]], seed: int
) -> None:
    torch.manual_seed(seed)
    scheduled, sampled, expected, rows = [], [], [], []
    for number, (asked, drafts, certain, samples) in enumerate(parts):
        request = Request(str(number), [1, 2, 3], SamplingParams(logprobs=asked), 0, number)
        drafts = drafts if samples else 0
        count = 3 + drafts if samples else 2
        scheduled.append(ScheduledRequest(request, 0, count, drafts))
        new = torch.randint(VOCABULARY, (min(certain, drafts + 1) if samples else 0,)).tolist()
        logits = torch.randn(drafts + 1 if samples else 0, VOCABULARY)
        rows.append(logits)
        sampled.append(tuple(new))
        expected.append([(asked, token, row) for token, row in zip(new, logits, strict=False)])
    found = logprobs_of(ScheduledBatch(tuple(scheduled)), sampled, torch.cat(rows))
    if not any(asked is not None for line in expected for asked, _, _ in line):
        assert found == ()
        return
    for line, wanted in zip(found, expected, strict=True):
        wanted = [one for one in wanted if one[0] is not None]
        assert len(line) == len(wanted)
        for got, (asked, token, row) in zip(line, wanted, strict=True):
            chances = row.log_softmax(-1)
            order = chances.argsort(descending=True)[:asked]
            assert got.token_ids == (token, *order.tolist())
            assert got.logprobs == pytest.approx(chances[list(got.token_ids)].tolist(), abs=1e-5)
            assert got.rank == int((chances > chances[token]).sum()) + 1


def test_equally_likely_tokens_are_none_before_the_other_and_the_generated_one_is_first() -> None:
    """As of ``Logprob`` and of argmax; vLLM counts the generated one's equals as before it."""
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0, 1.0, 2.0, 3.0]])
    for token, rank in ((6, 1), (5, 2), (2, 2), (4, 5), (0, 7)):
        params = SamplingParams(logprobs=4)
        request = Request("a", [1], params, 0, 0)
        batch = ScheduledBatch((ScheduledRequest(request, 0, 1, 0),))
        ((found,),) = logprobs_of(batch, [(token,)], logits)
        assert (found.token_ids[0], found.rank) == (token, rank)
        assert found.token_ids[1] == 6
        assert set(found.token_ids[2:]) == {1, 2, 5}
        assert list(found.logprobs[1:]) == sorted(found.logprobs[1:], reverse=True)
