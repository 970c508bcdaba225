"""The HTTP application: the endpoint's APIs, and for operators `/health` and `/metrics`.

`/health` says whether the engine serves and needs no key, so that a load balancer can ask; `/metrics` (the text format
of Prometheus) and the list of models need the key, if one is required."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ale.specs.engine import InferenceEngine
from ale_endpoint.dialects.dialect import openai_error
from ale_endpoint.http_app import build_app
from ale_endpoint.serving.served_policy import ServedPolicy

OPEN_PATHS = ("/", "/health", "/openapi.json")


def build_serving_app(policy: ServedPolicy, engine: InferenceEngine) -> Any:
    """Return the ASGI application that serves the policy."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Mount, Route

    class KeyRequired:
        """It refuses to show anything to those without the key; calls are refused by the endpoint, in their API's
        own form."""

        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            answer = self.app
            if scope["type"] == "http" and scope["method"] != "POST" and scope["path"] not in OPEN_PATHS:
                headers = Request(scope).headers
                scheme, _, token = headers.get("authorization", "").partition(" ")
                key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
                if not policy.lets_in(key):
                    answer = JSONResponse(
                        openai_error(401, "invalid_api_key", "The API key is not the right one."), 401
                    )
            await answer(scope, receive, send)

    async def health(request: Request) -> Response:
        if engine.metrics().get("replicas_serving", 1) == 0:  # an engine without replicas serves once it has started
            return JSONResponse({"status": "failed", "error": "None of the engine's replicas serves."}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse("".join(render_metrics(policy, engine.metrics())))

    return Starlette(
        routes=[
            Route("/health", health, methods=["GET", "HEAD"]),
            Route("/metrics", metrics, methods=["GET"]),
            Mount("/", build_app(policy)),
        ],
        middleware=[Middleware(KeyRequired)],
    )


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
