"""Serves a policy from the start of its engine to a signal.

1. The address is taken first, so that a port in use is known before minutes of loading.
2. SIGINT or SIGTERM ends the server: calls that have no answer a second later are cut off, then the engine is closed.
   The exit code is 0, or 130 and 143 if the policy was not served yet. A second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from ale.cli.messages import configure_messages
from ale.cli.signals import run_until_signal
from ale.errors import ConfigError
from ale.registry.drivers import open_driver
from ale.registry.hooks import Hooks
from ale.registry.validation import one_line_error
from ale.session.reply_format import ReplyForm
from ale.session.session import Sessions
from ale.session.tokenizer import ChatTokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import Sampling
from ale_endpoint.command import LOOPBACK
from ale_endpoint.secrets import read_secret
from ale_endpoint.server import listener_at, serving
from ale_endpoint.serving.app import build_serving_app
from ale_endpoint.serving.completions import Completions
from ale_endpoint.serving.conversations import Conversations
from ale_endpoint.serving.served_model import Target
from ale_endpoint.serving.served_policy import ServedPolicy
from ale_endpoint.upstream import without_key
from ale_train.workbench.channel import RunChannel

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of the machine's, and one of them that a client on it can use."""


@dataclass(frozen=True)
class Listening:
    """Where to listen, and for whom."""

    host: str
    port: int
    key_from: str | None
    """The environment variable with the key that clients must give."""
    key: str | None = field(repr=False)

    @classmethod
    def checked(cls, host: str, port: int, key_from: str | None) -> Self:
        """Return the options of the command line. Raises `ConfigError` for a host that is open to others without a key,
        and for a key in the place of its variable."""
        if host not in LOOPBACK and key_from is None:
            raise ConfigError(
                f"--host {host} lets others use the policy: name the environment variable of a key that they must "
                "give (--api-key VARIABLE), or leave --host out."
            )
        if key_from is not None and not key_from.isidentifier():
            raise ConfigError("--api-key takes the name of an environment variable that holds the key, not the key.")
        return cls(host, port, key_from, None if key_from is None else read_secret(key_from, "--api-key"))

    def origin(self, port: int) -> str:
        """Return the URL at which a client on this machine finds the server at this port."""
        host = EVERYWHERE.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve_until_signal(target: Target, listening: Listening) -> None:
    """Serve until a signal comes. Raises `AleError`."""

    def redact(text: str) -> str:
        text = target.redact(text)
        return text if listening.key is None else without_key(text, listening.key, "the API key")

    def show(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    configure_messages(show, redact)
    run_until_signal(lambda: _serve(target, listening, RunChannel(redact, show=show)))


async def _serve(target: Target, listening: Listening, channel: RunChannel) -> None:
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(_listen(listening))
        print(f"loading       {target.title} with the engine {target.config.engine.use}", flush=True)
        policy, app = await stack.enter_async_context(opened_policy(target, listening.key, channel))
        if listening.key is None:  # a web page must not reach the policy through a name that resolves here
            from starlette.middleware.trustedhost import TrustedHostMiddleware

            app = TrustedHostMiddleware(app, allowed_hosts=list(LOOPBACK), www_redirect=False)
        await stack.enter_async_context(serving(app, listener))
        origin = listening.origin(listener.getsockname()[1])
        print("\n".join(describe(target, listening, origin)), flush=True)
        await _signalled()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it would log the calls that are cut off now
    parts = [f"{number} {word}" for word, number in policy.counts.items() if number]
    print(f"ended: calls {', '.join(parts)}" if parts else "ended: no calls", flush=True)


@asynccontextmanager
async def opened_policy(
    target: Target, required_key: str | None, channel: RunChannel
) -> AsyncIterator[tuple[ServedPolicy, Any]]:
    """Start the target's engine with its policy, and yield that and the application that serves it. Raises
    `AleError`."""
    config = target.config
    context = DriverContext(f"serve-{target.name}", seed=config.seed, labels={"serve": target.name}, channel=channel)
    async with AsyncExitStack() as stack:
        tokenizer = ChatTokenizer.load(target.folder)
        choice = config.session.tool_format
        tool_format: Any = await open_driver(stack, "tool_format", choice, context, "session.tool_format")
        engine: Any = await open_driver(stack, "engine", config.engine, context, "engine")
        await engine.load_model(target.folder, tokenizer)
        form = ReplyForm(tool_format, config.session.thoughts, config.session.control_tokens)
        sessions = Sessions(tokenizer, engine, Hooks(), form)
        longest = engine.max_context
        rollout = config.rollout
        sampling = Sampling(rollout.temperature, rollout.top_p, rollout.top_k, target.max_tokens or longest)
        conversations = Conversations(sessions, target.max_context or longest)
        policy = ServedPolicy(conversations, sampling, [target.name], required_key)
        completions = Completions(engine, tokenizer, sampling, target.max_context or longest)
        yield policy, build_serving_app(policy, engine, completions)


def _listen(listening: Listening) -> socket.socket:
    """Take the address. Raises `ConfigError`."""
    try:
        return listener_at(listening.host, listening.port)
    except OSError as error:
        raise ConfigError(
            f"Nothing can listen at {listening.host}, port {listening.port}: "
            f"{one_line_error(error.strerror or error)}; --port takes another."
        ) from None


async def _signalled() -> None:
    """Return when a signal cancels this task: here this is the expected end, and no failure."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()


def describe(target: Target, listening: Listening, origin: str) -> Iterator[str]:
    """Yield the lines that say where the policy is served, with a call that can be pasted."""
    yield f"listening at  {origin}/v1 (OpenAI), {origin} (Anthropic)"
    if listening.key_from is not None:
        yield f"              for the key in {listening.key_from}; KEY:NAME is a client of its own for each NAME"
    body = {"model": target.name, "messages": [{"role": "user", "content": "hello"}]}
    key = f' -H "authorization: Bearer ${listening.key_from}"' if listening.key_from is not None else ""
    call = f"curl {origin}/v1/chat/completions{key} -H 'content-type: application/json' -d"
    yield f"try           {call} {shlex.quote(json.dumps(body))}"
    yield "Ctrl-C ends it."
