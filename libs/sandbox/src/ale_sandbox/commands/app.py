"""The command line of `ale sandbox`: arguments and help."""

from __future__ import annotations

from typing import Annotated

import typer

sandbox_app = typer.Typer(help="Sandboxes on this machine.", no_args_is_help=True, rich_markup_mode=None)
image_app = typer.Typer(help="Images of sandboxes.", no_args_is_help=True, rich_markup_mode=None)
sandbox_app.add_typer(image_app, name="image")

Provider = Annotated[
    str | None, typer.Option("--sandbox", "--provider", metavar="NAME", help="Only this provider, such as docker.")
]
SandboxId = Annotated[str, typer.Argument(metavar="ID", help="As `ale sandbox ls` lists it.")]
User = Annotated[str, typer.Option(metavar="agent|tests", help="User that runs it.")]
Folder = Annotated[
    str | None, typer.Option("--cwd", metavar="FOLDER", help="Folder to run it in; default: the work folder.")
]


@sandbox_app.command("ls")
def sandbox_ls(
    provider: Provider = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Also show memory, CPU, disk and network use of each.")
    ] = False,
) -> None:
    """List every sandbox of every provider, whoever started it."""
    from ale_sandbox.commands.list_commands import show

    show(provider, as_json, stats)


@sandbox_app.command("rm")
def sandbox_rm(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="As `ale sandbox ls` lists them.")],
    provider: Provider = None,
) -> None:
    """Remove sandboxes; a run that uses one gets an error."""
    from ale_sandbox.commands.list_commands import remove

    remove(ids, provider)


@sandbox_app.command("prune")
def sandbox_prune(provider: Provider = None) -> None:
    """Remove the sandboxes and files that killed runs have left behind."""
    from ale_sandbox.commands.list_commands import prune

    prune(provider)


@sandbox_app.command("exec")
def sandbox_exec(
    sandbox_id: SandboxId,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="A program and its arguments, or one shell command.")
    ],
    provider: Provider = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0.001, help="Seconds that the command may take.")
    ] = 3600,
    cwd: Folder = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Environment variable; may be repeated.")
    ] = None,
    user: User = "agent",
) -> None:
    """Run a command in a sandbox that another process started; exits with its exit code, or 124 at its time-out.

    Standard input is passed on unless it is a terminal.
    """
    from ale_sandbox.commands.attach_commands import run

    exit_code = run(sandbox_id, provider, command, timeout_s=timeout_s, cwd=cwd, env=env or [], user=user)
    raise typer.Exit(exit_code)


@sandbox_app.command("shell")
def sandbox_shell(
    sandbox_id: SandboxId,
    provider: Provider = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0.001, help="Seconds that a line may take.")
    ] = 3600,
    cwd: Folder = None,
    user: User = "agent",
) -> None:
    """Open a shell in a sandbox that another process started; it reads lines from the terminal or a pipe.

    `exit` or Ctrl-D leaves the shell, Ctrl-C ends the running line; the sandbox keeps running.
    """
    from ale_sandbox.commands.attach_commands import shell

    raise typer.Exit(shell(sandbox_id, provider, cwd, user, timeout_s))


@sandbox_app.command("cp")
def sandbox_cp(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A file or folder: PATH, or ID:PATH in a sandbox.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The copy: ID:PATH in a sandbox, or PATH.")],
    provider: Provider = None,
) -> None:
    """Copy a file or a folder into a sandbox or out of it.

    A copy goes into a folder that exists, under the source's name; `FOLDER/.` copies into a sandbox what is in FOLDER.
    """
    from ale_sandbox.commands.attach_commands import copy

    copy(source, target, provider)


@sandbox_app.command("logs")
def sandbox_logs(sandbox_id: SandboxId, provider: Provider = None) -> None:
    """Show a sandbox's journal: recent commands and their exit codes, files, refused connections."""
    from ale_sandbox.commands.attach_commands import logs

    logs(sandbox_id, provider)


@image_app.command("build")
def image_build(
    provider: Annotated[str, typer.Option("--sandbox", metavar="NAME", help="Provider to make it for.")] = "docker",
    name: Annotated[str | None, typer.Option(help="Name of the image; default: ale-base:1 or ale-python:1.")] = None,
    python: Annotated[bool, typer.Option("--python", help="Add a Python to the image.")] = False,
) -> None:
    """Build a small image from this machine's programs, without a registry; prints its name."""
    from ale_sandbox.commands.list_commands import build_image

    build_image(provider, name, python)
