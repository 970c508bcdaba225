"""`ale endpoint serve` forwards model calls to other servers through the endpoint's APIs, and records them.

Ctrl-C and SIGTERM end it; calls that have no answer a second later are cut off.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ale.cli.out_option import out_option

if TYPE_CHECKING:
    from ale_endpoint.upstream import Route

endpoint_app = typer.Typer(
    help="The model endpoint: without a run, and for sandboxes without a network.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
DEFAULT_OUT = Path("calls.jsonl")
LOOPBACK = ("127.0.0.1", "localhost")


@endpoint_app.command("serve")
def endpoint_serve(
    upstream: Annotated[
        str | None,
        typer.Option(
            metavar="URL[#MODEL]",
            help="Forward to this OpenAI-compatible API, such as https://host/v1; #MODEL: as this model.",
        ),
    ] = None,
    route: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=URL[#MODEL]",
            help="Forward calls of models of this name (* and ? fit any) there; may be repeated.",
        ),
    ] = None,
    key_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]VARIABLE", help="Environment variable with the key of --upstream, or of the route NAME."
        ),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Answer from this recording what is in it.")
    ] = None,
    out: Annotated[
        Path | None,
        out_option(f"Recording to write or to go on with; default: {DEFAULT_OUT}, none for a replay alone."),
    ] = None,
    require_key: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="Environment variable with the key that agents must give.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; others than 127.0.0.1 need --require-key.")
    ] = LOOPBACK[0],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: a free one.")] = 8500,
    unix: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Listen at this Unix socket too, for sandboxes without a network (see relay)."
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens in one answer; agents may ask for fewer, never for more.")
    ] = None,
    pictures: Annotated[
        bool, typer.Option(help="Pass pictures on; without, a mark stands in their place, for models that take text.")
    ] = True,
) -> None:
    """Serve models of other servers, or a recording, in the APIs of OpenAI and Anthropic; record every call.

    Agents choose a model by its name; any key will do, and names a session of the recording.
    """
    import asyncio

    from ale.errors import ConfigError
    from ale_endpoint.secrets import read_secret

    if host not in LOOPBACK and require_key is None:
        raise ConfigError(
            f"--host {host} lets others use your keys: name the environment variable of a key that they must give "
            "(--require-key VARIABLE), or leave --host out."
        )
    routes = routes_of(upstream, route or [], key_env or [])
    if not routes and replay is None:
        raise ConfigError("There is nothing to serve: give --upstream URL, --route NAME=URL, or --replay FILE.")
    if out is None and routes:
        out = DEFAULT_OUT
    required = read_secret(require_key, "--require-key") if require_key is not None else None
    asyncio.run(
        _serve(
            ServeOptions(
                routes=routes,
                replay=replay,
                out=out,
                required_key=required,
                host=host,
                port=port,
                unix=unix,
                max_tokens=max_tokens,
                pictures=pictures,
            )
        )
    )


def routes_of(upstream: str | None, named: Sequence[str], key_env: Sequence[str]) -> list[Route]:
    """The routes of the command line, `--upstream` last. A key goes to the one upstream that it is named for. Raises
    `ConfigError`."""
    from ale.errors import ConfigError
    from ale.registry.validation import nearest_hint
    from ale_endpoint.secrets import read_secret
    from ale_endpoint.upstream import Route

    urls: dict[str, str] = {}
    for each in named:
        pattern, equals, url = each.partition("=")
        if not pattern or not equals:
            raise ConfigError(f"--route {each}: write NAME=URL, such as gpt-*=https://host/v1.")
        if pattern in urls:
            raise ConfigError(f"--route {each}: there is a route '{pattern}' already.")
        urls[pattern] = url
    if upstream is not None:
        urls.setdefault("*", upstream)
        if urls["*"] != upstream:
            raise ConfigError(
                "--upstream and --route '*=...' both take the models that no other route takes; give one."
            )
    keys: dict[str, str] = {}
    for each in key_env:
        pattern, equals, variable = each.rpartition("=")
        pattern = pattern if equals else "*"
        if not variable.isidentifier():
            raise ConfigError("--key-env takes the name of an environment variable that holds the key, not the key.")
        if pattern not in urls:
            mend = (
                f"there is no route '{pattern}'.{nearest_hint(pattern, urls)}"
                if equals
                else "it goes with --upstream; write NAME=VARIABLE for a route."
            )
            raise ConfigError(f"--key-env {each}: {mend}")
        keys[pattern] = variable
    routes = []
    for pattern, whole in urls.items():
        url, _, model = whole.partition("#")
        holder = keys.get(pattern)
        key = read_secret(holder, "--key-env") if holder is not None else None
        routes.append(Route(url, pattern, model or None, key, f"the environment variable {holder}" if holder else ""))
    return routes


@dataclass(frozen=True)
class ServeOptions:
    """The command's options: what is served, where, and where it is recorded."""

    routes: Sequence[Route]
    replay: Path | None
    out: Path | None
    required_key: str | None
    host: str
    port: int
    unix: Path | None
    max_tokens: int | None
    pictures: bool

    @property
    def continues_recording(self) -> bool:
        """Whether the recording that is replayed is the one that is written."""
        return self.replay is not None and self.out is not None and self.replay.resolve() == self.out.resolve()


async def _serve(plan: ServeOptions) -> None:
    """Serve until a signal comes."""
    import asyncio
    import logging
    import signal
    from contextlib import AsyncExitStack

    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from ale.cli.messages import configure_messages
    from ale.errors import ConfigError
    from ale.registry.validation import one_line_error
    from ale_endpoint.forwarding import Forwarding
    from ale_endpoint.http_app import build_app
    from ale_endpoint.recording import Recording, read_recording
    from ale_endpoint.replay import Replay
    from ale_endpoint.server import listener_at, serving
    from ale_endpoint.unix_socket import unix_listener
    from ale_endpoint.upstream import Upstream, without_key

    leave = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, leave.set)
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(Upstream(plan.routes)) if plan.routes else None

        def redact(text: str) -> str:
            text = source.redact(text) if source is not None else text
            return without_key(text, plan.required_key, "the required key") if plan.required_key is not None else text

        configure_messages(lambda text: print(text, file=sys.stderr, flush=True), redact)
        replay = Replay(read_recording(plan.replay)) if plan.replay is not None else None
        recording = stack.enter_context(Recording(plan.out, redact)) if plan.out is not None else None
        names = [route.pattern for route in plan.routes if not set("*?[") & set(route.pattern)]
        names += replay.models if replay is not None else ()
        forwarding = Forwarding(
            source,
            replay,
            recording,
            models=tuple(dict.fromkeys(names)),
            required_key=plan.required_key,
            record_replayed=not plan.continues_recording,
            pictures="pass_on" if plan.pictures else "leave_out",
            max_tokens=plan.max_tokens,
        )
        app = build_app(forwarding)
        if plan.required_key is None:  # a web page must not reach the endpoint through a name that resolves here
            app = TrustedHostMiddleware(app, allowed_hosts=list(LOOPBACK), www_redirect=False)
        try:
            listener = stack.enter_context(listener_at(plan.host, plan.port))
        except OSError as error:
            raise ConfigError(
                f"Nothing can listen at {plan.host}, port {plan.port}: {one_line_error(error.strerror or error)}; "
                "--port takes another."
            ) from None
        listeners = [listener] if plan.unix is None else [listener, stack.enter_context(unix_listener(plan.unix))]
        await stack.enter_async_context(serving(app, *listeners))
        lines = [*describe_addresses(plan, listener.getsockname()[1])]
        if replay is not None:
            lines.append(f"replaying     {plan.replay} (requests in it: {len(replay)})")
        if recording is not None:
            lines.append(
                f"recording to  {plan.out}" + (f" (calls in it: {recording.lines})" if recording.lines else "")
            )
        print("\n".join([*lines, "Ctrl-C ends it."]), flush=True)
        await leave.wait()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it would log the calls that are cut off now
    parts = [
        f"{forwarding.counts[word]} {word}"
        for word in ("answered", "replayed", "failed", "refused")
        if forwarding.counts[word]
    ]
    print(f"ended: calls {', '.join(parts)}" if parts else "ended: no calls", flush=True)


def describe_addresses(plan: ServeOptions, port: int) -> Iterator[str]:
    """Lines that say where the endpoint listens and where it writes."""
    address = f"http://{plan.host}:{port}"
    yield f"listening at  {address}/v1 (OpenAI), {address} (Anthropic)"
    if plan.unix is not None:
        yield f"              {plan.unix} (Unix socket)"
    if plan.required_key is not None:
        yield "              for the required key; KEY:NAME opens a session of its own for each NAME"
    for route in plan.routes:
        every = "other models" if len(plan.routes) > 1 else "every model"
        name = every if route.pattern == "*" else route.pattern
        renamed = f" as {route.model}" if route.model else ""
        key = f"with the key from {route.key_from}" if route.key is not None else "without a key"
        yield f"forwarding    {name}{renamed} to {route.url} {key}"


@endpoint_app.command("relay")
def endpoint_relay(
    name: Annotated[
        str, typer.Argument(metavar="python|shell|node|files", help="What the sandbox has; files: needs no socket.")
    ],
) -> None:
    """Print a program that brings the model endpoint to a port of a sandbox without a network."""
    from ale_endpoint.relays import script

    sys.stdout.write(script(name))
