"""The HTTP application: the endpoint's APIs, and for operators `/health` and `/metrics`.

`/health` says whether the engine serves and needs no key, so that a load balancer can ask; `/metrics` (the text format
of Prometheus) and the list of models need the key, if one is required."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from ale.errors import RequestRefused
from ale.messages import refuse_constant
from ale.registry.validation import one_line_error
from ale.specs.engine import InferenceEngine
from ale_endpoint.dialects import ChatCompletions
from ale_endpoint.dialects.dialect import encoded, openai_error
from ale_endpoint.dialects.request_models import parse
from ale_endpoint.http_app import (
    HttpError,
    HungUp,
    Parts,
    as_http_error,
    begin_stream,
    body_of,
    build_app,
    stream_parts,
    wait_until_done,
)
from ale_endpoint.serving.completions import CompletionRequest, Completions
from ale_endpoint.serving.served_policy import ServedPolicy

OPEN_PATHS = ("/", "/health", "/openapi.json")


@contextmanager
def counted(policy: ServedPolicy, *, answers: bool = True) -> Iterator[None]:
    """Count what becomes of a call. Raises `HttpError` in place of errors of ALE."""
    try:
        with as_http_error():
            yield
    except HttpError as refused:
        policy.counts["failed" if refused.status >= 500 else "refused"] += 1
        raise
    except (HungUp, asyncio.CancelledError):
        policy.counts["cancelled"] += 1
        raise
    policy.counts["answered"] += answers


def build_serving_app(policy: ServedPolicy, engine: InferenceEngine, completions: Completions | None = None) -> Any:
    """Return the ASGI application that serves the policy, and text completions if they are given."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route

    class KeyRequired:
        """It refuses to show anything to those without the key; calls are refused by the endpoint, in their API's
        own form."""

        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            answer = self.app
            asks = scope["type"] == "http" and scope["method"] != "POST" and scope["path"] not in OPEN_PATHS
            if asks and not policy.lets_in(key_in(Request(scope).headers)):
                answer = JSONResponse(openai_error(401, "invalid_api_key", "The API key is not the right one."), 401)
            await answer(scope, receive, send)

    async def health(request: Request) -> Response:
        if engine.metrics().get("replicas_serving", 1) == 0:  # an engine without replicas serves once it has started
            return JSONResponse({"status": "failed", "error": "None of the engine's replicas serves."}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse("".join(render_metrics(policy, engine.metrics())))

    async def complete(request: Request) -> Response:
        assert completions is not None
        try:
            with counted(policy, answers=False):
                asked = await read_completion(request)
            if asked.stream:
                begun = await begin_stream(request, partial(write_completion, asked))
                return StreamingResponse(stream_parts(ChatCompletions(), *begun), media_type="text/event-stream")
            with counted(policy):
                answering = asyncio.ensure_future(completions.answer(asked))
                try:
                    await wait_until_done(request, answering, None)
                finally:
                    answering.cancel()
                return Response(encoded(answering.result()), media_type="application/json")
        except HttpError as refused:
            return JSONResponse(openai_error(refused.status, refused.code, refused.message), refused.status)
        except HungUp:
            return Response(status_code=499)

    async def read_completion(request: Request) -> CompletionRequest:
        key = key_in(request.headers)
        if not policy.lets_in(key) or (not key and "origin" in request.headers):
            raise HttpError(401, "invalid_api_key", "The API key is not the right one.")
        try:
            return parse(CompletionRequest, json.loads(await body_of(request), parse_constant=refuse_constant))
        except (ValueError, RecursionError) as error:
            raise RequestRefused(f"{one_line_error(error)}.") from None

    async def write_completion(asked: CompletionRequest, parts: Parts) -> None:
        assert completions is not None
        with counted(policy):
            await completions.stream(asked, lambda event: parts.put_nowait(event.encode()))

    return Starlette(
        routes=[
            *([Route("/v1/completions", complete, methods=["POST"])] if completions is not None else []),
            Route("/health", health, methods=["GET", "HEAD"]),
            Route("/metrics", metrics, methods=["GET"]),
            Mount("/", build_app(policy)),
        ],
        middleware=[Middleware(KeyRequired)],
    )


def key_in(headers: Mapping[str, str]) -> str:
    """Return the key that a request gives; an empty one if it gives none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def render_metrics(policy: ServedPolicy, of_engine: Mapping[str, float]) -> Iterator[str]:
    """Yield lines in Prometheus's text format: the calls, the conversations, and the engine's own metrics."""
    yield "# TYPE ale_serving_calls_total counter\n"
    for outcome, number in policy.counts.items():
        yield f'ale_serving_calls_total{{outcome="{outcome}"}} {number}\n'
    of_policy = {
        "calls_running": policy.running,
        "conversations": len(policy.conversations),
        "conversation_tokens": policy.conversations.tokens,
    }
    named = {f"ale_serving_{name}": float(value) for name, value in of_policy.items()}
    named |= {f"ale_engine_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}": value for name, value in of_engine.items()}
    for name, value in named.items():
        yield f"# TYPE {name} {'gauge' if name.startswith('ale_endpoint.serving') else 'untyped'}\n{name} {value}\n"
