"""The command line. Each command imports what it needs when it runs, so that `ale --help` is instant.

`main` turns the errors of ALE into lines on stderr and an exit code; the commands only raise them. An error that is no
`AleError` is a fault in the code, and its traceback is shown.
"""

from __future__ import annotations

import os
import sys
import warnings
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from ale import __version__
from ale.cli.arguments import Overrides, RunFile
from ale.cli.endpoint_command import endpoint_app
from ale.cli.tasks_app import tasks_app
from ale.errors import AleError, ConfigError

app = typer.Typer(
    name="ale", help="Train agents that act.", epilog="Plugins may add commands, such as `ale lab` of ale-plugin-lab.",
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip
plugins_app = typer.Typer(help="What is installed.", no_args_is_help=True, rich_markup_mode=None)
config_app = typer.Typer(help="Look at run files and settings.", rich_markup_mode=None)
sandbox_app = typer.Typer(help="Sandboxes on this machine.", no_args_is_help=True, rich_markup_mode=None)
image_app = typer.Typer(help="Images of sandboxes.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(tasks_app, name="tasks")
app.add_typer(plugins_app, name="plugins")
app.add_typer(endpoint_app, name="endpoint")
app.add_typer(sandbox_app, name="sandbox")
sandbox_app.add_typer(image_app, name="image")
app.add_typer(config_app, name="config")
OWN_COMMANDS = frozenset({"run", "eval", "report", "plugins", "config", "sandbox", "endpoint", "tasks"})
BROUGHT_BY = {"lab": "ale-plugin-lab"}
"""Which package brings a command, for the sentence that says what to install."""


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error too.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command("run")
def run_(
    file: RunFile,
    overrides: Overrides = None,
    only: Annotated[str, typer.Option(help="Half of the loop: rollout (keep a dump) or train (on a dump).")] = "all",
    source: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Run folder to take the policy or the dump from.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to write; default: a new one in run_dir.")] = None,
) -> None:
    """Execute a run; the last line is the path of its summary.json."""
    from ale.cli.run_command import run

    run(file, overrides or [], only, source, out)


@app.command("eval")
def eval_(
    target: Annotated[Path, typer.Argument(metavar="RUN|FILE", help="A run folder, or a run file with --model.")],
    overrides: Overrides = None,
    model: Annotated[Path | None, typer.Option(help="Model folder; default: the run's most trained policy.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Held-out episodes.")] = None,
) -> None:
    """Held-out success of a policy, without training."""
    from ale.cli.eval_command import evaluate

    evaluate(target, model, episodes, overrides or [])


@app.command("report")
def report_(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    output: Annotated[Path | None, typer.Option(help="Where to write; default: report.html in the run folder.")] = None,
) -> None:
    """Write one self-contained HTML page about a run."""
    from ale.cli.report_command import report

    report(run, output)


@plugins_app.command("list")
def plugins_list(
    kind: Annotated[str | None, typer.Option(help="Only this kind, such as sandbox.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Every installed plugin, read from metadata without importing any."""
    from ale.cli.plugins_command import show

    show(kind, as_json)


@plugins_app.command("check")
def plugins_check(
    kind: Annotated[str | None, typer.Option(help="Only this kind, such as sandbox.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Seconds that one import may take.")] = 60.0,
) -> None:
    """Import each plugin in a process of its own; the exit code is 1 where one fails."""
    from ale.cli.plugins_command import check

    raise typer.Exit(check(kind, as_json, timeout_s))


@plugins_app.command("info")
def plugins_info(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Such as sandbox.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="NAME, or PACKAGE:NAME where two bring it.")],
) -> None:
    """One plugin: its settings, its capabilities, where it is loaded from."""
    from ale.cli.plugins_command import info

    info(kind, name)


@plugins_app.command("new")
def plugins_new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Such as sandbox; hooks for an observer.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="What run files will call it.")],
    hooks: Annotated[bool, typer.Option("--hooks", help="Add an observer beside the driver.")] = False,
    into: Annotated[Path, typer.Option(help="Folder to write the package into.")] = Path(),
) -> None:
    """Write the package of a new plugin, with a driver that works and tests that pass."""
    from ale.cli.new_command import new

    new(kind, name, hooks, into)


Provider = Annotated[
    str | None, typer.Option("--sandbox", "--provider", metavar="NAME", help="Only this provider, such as docker.")
]
SandboxId = Annotated[str, typer.Argument(metavar="ID", help="As `ale sandbox ls` lists it.")]
User = Annotated[str, typer.Option(metavar="agent|tests", help="Who runs it.")]
Folder = Annotated[str | None, typer.Option("--cwd", metavar="FOLDER", help="Where; default: the work folder.")]


@sandbox_app.command("ls")
def sandbox_ls(
    provider: Provider = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="What each uses, where its owner answers.")] = False,
) -> None:
    """Every sandbox of every provider, whoever started it."""
    from ale.cli.sandbox_command import show

    show(provider, as_json, stats)


@sandbox_app.command("rm")
def sandbox_rm(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="As `ale sandbox ls` lists them.")],
    provider: Provider = None,
) -> None:
    """Remove sandboxes; whoever uses them is told that they are gone."""
    from ale.cli.sandbox_command import remove

    remove(ids, provider)


@sandbox_app.command("prune")
def sandbox_prune(provider: Provider = None) -> None:
    """Remove what runs that were killed have left."""
    from ale.cli.sandbox_command import prune

    prune(provider)


@sandbox_app.command("exec")
def sandbox_exec(
    sandbox_id: SandboxId,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="A program and its arguments, or one shell command.")
    ],
    provider: Provider = None,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="S", min=0.001, help="Seconds it may take.")] = 3600,
    cwd: Folder = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Variable; may be repeated.")] = None,
    user: User = "agent",
) -> None:
    """Run a command in a sandbox that another process started; ends with its exit code, 124 when its time is up.

    Standard input is passed on unless it is a terminal.
    """
    from ale.cli.attach_command import run

    raise typer.Exit(run(sandbox_id, provider, command, timeout_s, cwd, env or [], user))


@sandbox_app.command("shell")
def sandbox_shell(
    sandbox_id: SandboxId,
    provider: Provider = None,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="S", min=0.001, help="Seconds of a line.")] = 3600,
    cwd: Folder = None,
    user: User = "agent",
) -> None:
    """A shell in a sandbox that another process started: line by line, from the terminal or a pipe.

    `exit` or Ctrl-D leaves it, Ctrl-C ends the line that runs; the sandbox goes on.
    """
    from ale.cli.attach_command import shell

    raise typer.Exit(shell(sandbox_id, provider, cwd, user, timeout_s))


@sandbox_app.command("logs")
def sandbox_logs(sandbox_id: SandboxId, provider: Provider = None) -> None:
    """What happened in a sandbox lately: commands and their ends, files, network that was refused."""
    from ale.cli.attach_command import logs

    logs(sandbox_id, provider)


@sandbox_app.command("bake")
def sandbox_bake(file: RunFile, overrides: Overrides = None) -> None:
    """Put a run's agents into its images before it starts; prints agent, image and snapshot."""
    from ale.cli.bake_command import bake_agents

    bake_agents(file, overrides or [])


@image_app.command("build")
def image_build(
    provider: Annotated[str, typer.Option("--sandbox", metavar="NAME", help="Provider to make it for.")] = "docker",
    name: Annotated[str | None, typer.Option(help="Name of the image; default: ale-base:1 or ale-python:1.")] = None,
    python: Annotated[bool, typer.Option("--python", help="With a Python in it.")] = False,
) -> None:
    """A small image made of this machine's programs, without a registry; prints its name."""
    from ale.cli.sandbox_command import build_image

    build_image(provider, name, python)


@endpoint_app.command("relay")
def endpoint_relay(
    name: Annotated[
        str, typer.Argument(metavar="python|shell|node|files", help="What the sandbox has; files: needs no socket.")
    ],
) -> None:
    """Print a program that brings the model endpoint to a port of a sandbox without a network."""
    from ale.cli.relay_command import relay

    relay(name)


@config_app.callback(invoke_without_command=True)
def config_(
    context: typer.Context,
    diff: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="A B", help="What two run files or run folders do differently.")
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="JSON Schema of a run file with what is installed.")] = False,
) -> None:
    """Look at run files and settings."""
    if schema:
        import json

        from ale.cli.config_schema import run_schema

        print(json.dumps(run_schema(), indent=2))
    elif diff is not None:
        from ale.cli.config_diff import diff as print_diff

        raise typer.Exit(print_diff(*diff))
    elif context.invoked_subcommand is None:
        print(context.get_help())


@config_app.command("show")
def config_show(file: RunFile, overrides: Overrides = None) -> None:
    """The resolved configuration of a run file."""
    from ale.config import load_run_config

    print(load_run_config(file, overrides or []).to_yaml(), end="")


@config_app.command("validate")
def config_validate(file: RunFile, overrides: Overrides = None) -> None:
    """Check a run file and the settings of every plugin that it names."""
    from ale.cli.config_command import validate

    validate(file, overrides or [])


@config_app.command("describe")
def config_describe(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="A kind of plugin.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A plugin of that kind.")] = None,
) -> None:
    """Every key with type, default and meaning: of a run file, or of a plugin."""
    from ale.cli.config_command import describe

    describe(kind, name)


def main() -> None:
    """Run the command line; a mistake is a sentence on stderr and an exit code, never a traceback."""
    arguments = sys.argv[1:]
    options = list(takewhile(lambda word: word.startswith("-"), arguments))
    command = arguments[len(options)] if len(arguments) > len(options) else None
    _show_deprecations_once()
    try:
        if command is not None and command not in OWN_COMMANDS:
            _add_plugin_commands(command)
        # Not standalone: typer would print mistakes and Ctrl-C in its own way, and end the process.
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except AleError as error:
        if "--debug" in options:
            sys.excepthook(*sys.exc_info())
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # `ale plugins list | head -1`: whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        # A mistake in the command line itself; the class is typer's or click's, depending on typer's version.
        if not callable(getattr(error, "show", None)):
            raise
        error.show()  # type: ignore[attr-defined]
        sys.exit(ConfigError.exit_code)
    if code == 130:  # newer releases of typer turn a Ctrl-C into this number, older ones into an exception
        print("interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _show_deprecations_once() -> None:
    """What a plugin's user is to know becomes one line, once; other warnings are shown as Python shows them."""
    shown: set[str] = set()
    show = warnings.showwarning

    def show_once(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        from ale.versions import ContractDeprecation

        if not issubclass(category, ContractDeprecation):
            show(message, category, *place, **more)
        elif str(message) not in shown:
            shown.add(str(message))
            print(f"warning: {message}", file=sys.stderr)

    warnings.showwarning = show_once


def _add_plugin_commands(wanted: str) -> None:
    """An unknown command may be an observer's (`ale_commands`); only then are observers loaded."""
    from ale.observers import command_hooks

    command_hooks().call("ale_commands", app=app)
    package = BROUGHT_BY.get(wanted)
    added = {group.name for group in app.registered_groups} | {command.name for command in app.registered_commands}
    if package is not None and wanted not in added:
        raise ConfigError(
            f"There is no command '{wanted}'. `pip install {package}` brings it, where ALE_PLUGINS does not leave it out."
        )
