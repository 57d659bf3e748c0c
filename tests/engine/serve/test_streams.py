"""Streams of the engine in an event loop: whole, refused, too many, left in the middle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import pytest

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.errors import EngineDeadError, EngineError, PromptError, RemoteError
from sample_engine.llm import LLM
from sample_engine.process.messages import MessageError
from sample_engine.serve.streams import Item, OverloadedError, Prompt, Streams
from tests.engine.support.process import Script

FOUR = SamplingParams(max_tokens=4)
ENDLESS = SamplingParams(max_tokens=1 << 40)
WAIT_SECONDS = 300.0


@pytest.fixture
def streams() -> Iterator[Streams]:
    made = Streams(LLM(core_factory=Script(), worker_method="inproc"), at_once=2, waiting=1)
    yield made
    made.close()


async def read(streams: Streams, prompts: Sequence[Prompt], params: SamplingParams) -> list[Item]:
    return [item async for item in streams.read(prompts, params)]


def test_all_prompts_are_completed_and_told_apart(streams: Streams) -> None:
    items = asyncio.run(read(streams, ["ab", "xyz", {"prompt_token_ids": [99]}], FOUR))
    texts = ["".join(out.text for place, out in items if place == n) for n in range(3)]
    assert texts == ["abab", "xyzx", "cccc"]
    assert streams.count == 0


def test_a_refused_prompt_ends_the_others(streams: Streams) -> None:
    with pytest.raises(PromptError, match="empty prompt"):
        asyncio.run(read(streams, ["ab", ""], ENDLESS))
    assert streams.count == 0
    assert asyncio.run(read(streams, ["ab"], FOUR)), "the engine goes on"


def test_what_is_no_exception_does_not_look_like_the_end_of_a_text(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        pass

    def panic(*arguments: object) -> None:
        raise PanicException("no entry found")

    monkeypatch.setattr(streams.llm, "generate_stream", panic)
    with pytest.raises(RuntimeError, match="PanicException: no entry found"):
        asyncio.run(read(streams, ["ab"], FOUR))
    assert streams.count == 0


def test_more_than_may_wait_are_refused(streams: Streams) -> None:
    async def both() -> None:
        async with contextlib.aclosing(streams.read(["a", "b"], ENDLESS)) as busy:
            await anext(busy)
            with pytest.raises(OverloadedError, match="2 completions are under way"):
                await read(streams, ["c", "d"], FOUR)

    asyncio.run(both())
    assert streams.count == 0


def test_more_than_may_ever_be_under_way_are_refused_for_good(streams: Streams) -> None:
    words = "4 completions are asked for, and this server takes at most 3 at a time"
    with pytest.raises(PromptError, match=words) as refused:
        asyncio.run(read(streams, ["a", "b", "c", "d"], FOUR))
    assert (refused.value.param, streams.count) == ("", 0)
    twice = SamplingParams(n=2, temperature=1, max_tokens=4)
    with pytest.raises(PromptError, match=words) as refused:
        asyncio.run(read(streams, ["a", "b"], twice))
    assert (refused.value.param, streams.count) == ("n", 0)


def test_each_completion_of_a_prompt_counts(streams: Streams) -> None:
    async def both() -> None:
        twice = SamplingParams(n=2, temperature=1, max_tokens=1 << 40)
        async with contextlib.aclosing(streams.read(["a"], twice)) as busy:
            await anext(busy)
            assert streams.count == 2
            with pytest.raises(OverloadedError, match="2 completions are under way"):
                await read(streams, ["b", "c"], FOUR)
            assert await read(streams, ["b"], FOUR)

    asyncio.run(both())
    assert streams.count == 0


def test_a_stream_that_is_left_is_ended_in_the_engine(streams: Streams) -> None:
    async def leave() -> None:
        async with contextlib.aclosing(streams.read(["a"], ENDLESS)) as busy:
            await anext(busy)

    asyncio.run(leave())
    asyncio.run(asyncio.wait_for(_until_forgotten(streams), WAIT_SECONDS))


async def _until_forgotten(streams: Streams) -> None:
    while not streams.llm.metrics()["aborted"]:
        await asyncio.sleep(0.01)


def test_an_engine_that_is_gone_is_known_to_be(streams: Streams) -> None:
    streams.llm.shutdown()
    with pytest.raises(EngineDeadError):
        asyncio.run(read(streams, ["a"], FOUR))
    assert isinstance(streams.dead, EngineDeadError)


@pytest.mark.parametrize("kind", [EngineDeadError, RemoteError, MessageError])
def test_a_look_finds_out_why_and_the_first_reason_stays(
    kind: type[EngineError], streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.look()
    assert streams.dead is None
    first, second = kind("it says why"), EngineDeadError("the first error says more")
    errors = iter([first, second])

    def ask() -> None:
        raise next(errors)

    monkeypatch.setattr(streams.llm, "metrics", ask)
    streams.look()
    streams.look()
    assert streams.dead is first


def test_its_end_ends_what_is_under_way(streams: Streams) -> None:
    async def close() -> None:
        async with contextlib.aclosing(streams.read(["a"], ENDLESS)) as busy:
            await anext(busy)
            await asyncio.to_thread(streams.close)
            with contextlib.suppress(EngineDeadError):
                async for _ in busy:
                    pass

    asyncio.run(asyncio.wait_for(close(), WAIT_SECONDS))
