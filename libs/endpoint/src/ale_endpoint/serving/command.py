"""The command line loads `ale serve` from here; the code that does the work is imported when the command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    target: Annotated[Path, typer.Argument(metavar="RUN|FOLDER", help="A run folder, or a Hugging Face model folder.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings that win over the run's, such as engine.threads=2."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Engine plugin; default: the run's, or torch for a model folder.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Policy of the run: final, sft, cpt, initial, or a step of RL such as 20; default: the most trained.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; others than 127.0.0.1 need --api-key.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Environment variable with the key that clients must give."),
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="The same as a KEY=VALUE; several times.")
    ] = None,
) -> None:
    """Serve a policy in the APIs of OpenAI and Anthropic, until Ctrl-C."""
    from ale_endpoint.serving.serve import Listening, serve_until_signal
    from ale_endpoint.serving.served_model import read_target

    listening = Listening.checked(host, port, api_key)
    serve_until_signal(read_target(target, engine, checkpoint, [*(overrides or []), *(sets or [])]), listening)
