"""The endpoint over HTTP: OpenAI chat completions, not streamed, on a loopback port.

The bearer key names the session, so one agent cannot speak for another. Errors come in OpenAI's shape: 4xx for what
will not get better by trying again, 5xx for what may.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from ale.endpoint.session import EndpointSession, ModelEndpoint
from ale.errors import AleError, BudgetExceeded
from ale.messages import ChatReply, Message, ToolSpec

MAX_BODY_BYTES = 16 << 20


def build_app(endpoint: ModelEndpoint) -> Any:
    """The Starlette application."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    def refuse(status: int, message: str, code: str) -> JSONResponse:
        kind = "invalid_request_error" if status < 500 else "server_error"
        return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": code}}, status)

    def session_of(request: Request) -> EndpointSession | None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return endpoint.by_key(key.strip()) if scheme.lower() == "bearer" else None

    async def chat_completions(request: Request) -> JSONResponse:
        session = session_of(request)
        if session is None:
            return refuse(401, "The API key belongs to no open session.", "invalid_api_key")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                return refuse(413, f"The request is larger than {MAX_BODY_BYTES} bytes.", "request_too_large")
        try:
            messages, tools = read_request(bytes(body))
        except ValueError as error:
            return refuse(400, str(error), "invalid_request")
        try:
            reply = await session.chat(messages, tools)
        except BudgetExceeded as error:
            return refuse(400, str(error), "context_length_exceeded")
        except AleError as error:
            return refuse(503 if error.retryable else 500, str(error), f"{error.kind}_error")
        return JSONResponse(completion(session, reply))

    async def models(request: Request) -> JSONResponse:
        entry = {"id": "policy", "object": "model", "created": 0, "owned_by": "ale"}
        return JSONResponse({"object": "list", "data": [entry]})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
        ]
    )


def read_request(body: bytes) -> tuple[list[Message], list[ToolSpec]]:
    """Messages and tools of a chat-completions request. Raises `ValueError` with a sentence."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The request is not valid JSON: {error}.") from error
    if not isinstance(data, dict) or not isinstance(data.get("messages"), list) or not data["messages"]:
        raise ValueError("The request needs 'messages', a list with at least one message.")
    if data.get("stream"):
        raise ValueError('This endpoint does not stream; send "stream": false.')
    if data.get("n") not in (None, 1):
        raise ValueError('This endpoint gives one choice a call; send "n": 1.')
    messages = []
    for i, raw in enumerate(data["messages"]):
        if not isinstance(raw, dict):
            raise ValueError(f"messages[{i}] must be an object.")
        try:
            messages.append(Message.from_openai(raw))
        except (ValueError, TypeError) as error:
            raise ValueError(f"messages[{i}]: {error}.") from error
    return messages, [_read_tool(i, raw) for i, raw in enumerate(data.get("tools") or ())]


def _read_tool(i: int, raw: Any) -> ToolSpec:
    function = raw.get("function") if isinstance(raw, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"tools[{i}] must be a function tool with a name.")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise ValueError(f"tools[{i}].function.parameters must be a JSON Schema object.")
    parameters = {"properties": {}, **parameters}
    return ToolSpec(function["name"], str(function.get("description", "")), parameters)


def completion(session: EndpointSession, reply: ChatReply) -> dict[str, Any]:
    """A chat-completions answer."""
    message = reply.message.to_openai()
    if reply.message.tool_calls and not reply.message.content:
        message["content"] = None
    return {
        "id": f"chatcmpl-{session.id}-{reply.chunk}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "policy",
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": None}],
        "usage": {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        },
    }


@asynccontextmanager
async def serve(endpoint: ModelEndpoint) -> AsyncIterator[str]:
    """Serve on a free loopback port while the context lasts; yields the base URL and sets `endpoint.base_url`."""
    import uvicorn

    class Server(uvicorn.Server):
        """Leaves signals to the run, which has to clean up more than a server."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        build_app(endpoint), log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                await task
                raise RuntimeError("the HTTP server ended before it had started")
            await asyncio.sleep(0.01)
        endpoint.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        yield endpoint.base_url
    finally:
        endpoint.base_url = None
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
        listener.close()
