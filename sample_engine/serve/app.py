"""The HTTP interface: models, completions and chat completions, whole or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from sample_engine.batch.request_limits import check_stop_tokens
from sample_engine.errors import (
    EngineDeadError,
    EngineError,
    KVTransferError,
    NotFiniteError,
    PromptError,
    RemoteError,
)
from sample_engine.serve.answers import Answer, error_body, models_body
from sample_engine.serve.bodies import LimitedBodies
from sample_engine.serve.deaths import deaths_watched
from sample_engine.serve.disconnects import unless_gone
from sample_engine.serve.protocol import ChatRequest, CompletionRequest, UnsupportedFieldError
from sample_engine.serve.streams import Item, OverloadedError, StoppedError, Streams

CLIENT_WENT_AWAY = 499
"""What nobody reads: the status that nginx gives such a request in its log."""
_EVENTS = "text/event-stream"
_DONE = "data: [DONE]\n\n"


class Service:
    """What answers requests.

    Attributes:
        streams: The engine's streams.
        model: The name by which clients ask for the model.

    """

    def __init__(self, streams: Streams, model: str, on_dead: Callable[[], object]) -> None:
        """Call ``on_dead`` where the engine is gone: nothing can be answered any more."""
        self.streams = streams
        self.model = model
        self._on_dead = on_dead

    async def answer(self, asked: CompletionRequest | ChatRequest, request: Request) -> Response:
        """Answer a request; errors are answers, too."""
        if asked.model != self.model:
            words = f"There is no model {asked.model!r} here; there is {self.model!r}."
            return _error(404, words, "invalid_request_error", "model_not_found", "model")
        try:
            params = asked.params()
            # The core would refuse it, too, and could not say which field is wrong.
            size = self.streams.llm.info().get("vocab_size", sys.maxsize)
            check_stop_tokens("The request", params, size)
            if isinstance(asked, ChatRequest):
                messages = asked.conversation()
                # In a thread: a long conversation takes seconds, and others go on.
                prompts = [await asyncio.to_thread(self.streams.llm.chat_prompt, messages)]
            else:
                prompts = asked.prompts()
            items = self.streams.read(prompts, params)
            answer = Answer(self.model, params, chat=isinstance(asked, ChatRequest))
            if asked.stream:
                return await self._stream(asked, items, answer, request)
            whole = await unless_gone(request, _collect(items, answer))
        except Exception as error:
            return self._as_error(error, asked)
        return Response(status_code=CLIENT_WENT_AWAY) if whole is None else JSONResponse(whole)

    @contextlib.contextmanager
    def watch_over_engine(self) -> Iterator[None]:
        """Find out by oneself where the engine dies: perhaps nobody asks it for anything."""
        looking: list[asyncio.Task[None]] = []

        async def look() -> None:
            await asyncio.to_thread(self.streams.look)
            if self.streams.dead is not None:
                self._on_dead()

        pids = self.streams.llm.info().get("rank_pids", ())
        with deaths_watched(pids, lambda: looking.append(asyncio.ensure_future(look()))):
            yield

    async def _stream(
        self,
        asked: CompletionRequest | ChatRequest,
        items: AsyncGenerator[Item, None],
        answer: Answer,
        request: Request,
    ) -> Response:
        """Begin a stream with its first part: what is refused has a status of its own.

        Until then it may wait for its turn, and its client may go away.
        """
        first = await unless_gone(request, _first(items))
        if first is None:
            return Response(status_code=CLIENT_WENT_AWAY)
        events = self._events(first, items, answer, asked)
        return StreamingResponse(events, media_type=_EVENTS)

    async def _events(
        self,
        first: Sequence[Item],
        items: AsyncGenerator[Item, None],
        answer: Answer,
        asked: CompletionRequest | ChatRequest,
    ) -> AsyncIterator[str]:
        try:
            async with contextlib.aclosing(items):
                for item in first:
                    yield _event(answer.part(*item))
                async for item in items:
                    yield _event(answer.part(*item))
            if asked.with_usage:
                yield _event(answer.last_part())
        except Exception as error:  # the status has been sent: the error is a part
            yield _event(json.loads(bytes(self._as_error(error, asked).body)))
        yield _DONE

    def _as_error(self, error: Exception, asked: CompletionRequest | ChatRequest) -> JSONResponse:
        """Return the answer to a request that failed.

        Raises:
            Exception: what is none of the engine's errors.

        """
        if isinstance(error, PromptError):
            code = "unsupported" if isinstance(error, UnsupportedFieldError) else None
            return _error(400, str(error), "invalid_request_error", code, asked.field_of(error))
        if isinstance(error, OverloadedError):
            return _error(503, str(error), "server_error", "overloaded")
        if isinstance(error, NotFiniteError):
            return _error(500, str(error), "server_error", "not_finite")
        if isinstance(error, KVTransferError):
            return _error(503, str(error), "server_error", "kv_transfer")
        if isinstance(error, StoppedError):
            return _error(503, str(error), "server_error", "stopped")
        if isinstance(error, EngineDeadError | RemoteError):
            self._on_dead()
            return _error(500, f"The engine is gone: {error}", "server_error", "engine_dead")
        if isinstance(error, EngineError):
            return _error(500, str(error), "server_error")
        raise error


def create_app(service: Service) -> FastAPI:
    """Return the application; its end is the engine's."""
    created = int(time.time())

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with service.watch_over_engine():
            yield
        await asyncio.to_thread(service.streams.close)

    app = FastAPI(title="sample_engine", lifespan=lifespan)
    app.add_middleware(LimitedBodies)
    # What a request has to be is told as OpenAI tells it, not as FastAPI does.
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)

    @app.get("/health")
    async def health() -> Response:
        """Say whether requests can be answered."""
        dead = service.streams.dead
        words = {"status": "ok" if dead is None else f"the engine is gone: {dead}"}
        return JSONResponse(
            {**words, "running": service.streams.count}, status_code=200 if dead is None else 503
        )

    @app.get("/v1/models")
    async def models() -> Any:
        """Name the model."""
        longest = service.streams.llm.info().get("max_model_len")
        return models_body([service.model], created, longest)

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Any:
        """Tell of one model."""
        if name != service.model:
            words = f"There is no model {name!r} here; there is {service.model!r}."
            return _error(404, words, "invalid_request_error", "model_not_found", "model")
        longest = service.streams.llm.info().get("max_model_len")
        return models_body([name], created, longest)["data"][0]

    @app.post("/v1/completions")
    async def completions(asked: CompletionRequest, request: Request) -> Response:
        """Go on with a text."""
        return await service.answer(asked, request)

    @app.post("/v1/chat/completions")
    async def chat(asked: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        return await service.answer(asked, request)

    return app


async def _first(items: AsyncGenerator[Item, None]) -> list[Item]:
    """What comes first, if anything comes."""
    async for item in items:
        return [item]
    return []


async def _collect(items: AsyncGenerator[Item, None], answer: Answer) -> dict[str, Any]:
    async with contextlib.aclosing(items):
        async for item in items:
            answer.add(*item)
    return answer.whole()


def _event(part: Any) -> str:
    return f"data: {json.dumps(part, separators=(',', ':'))}\n\n"


def _error(
    status: int, message: str, kind: str, code: str | None = None, param: str | None = None
) -> JSONResponse:
    return JSONResponse(error_body(message, kind, code, param), status_code=status)


async def _invalid(request: Request, error: Exception) -> Response:
    """Answer a body that is not what it has to be."""
    assert isinstance(error, RequestValidationError)
    if isinstance(error.body, bytes):  # it was not even read as JSON
        given = request.headers.get("content-type")
        words = f"Content-Type must be 'application/json', not {given or ''!r}."
        return _error(415, words, "invalid_request_error", "unsupported_content_type")
    first = error.errors()[0]
    place = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":  # then the place is a position in the text
        place = []
    words = f"{'.'.join(place) or 'the body'}: {first['msg']}"
    return _error(400, words, "invalid_request_error", None, place[0] if place else None)


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer a path or a method that there is not."""
    assert isinstance(error, HTTPException)
    words = f"{request.method} {request.url.path}: {error.detail}"
    return _error(error.status_code, words, "invalid_request_error")
