"""The command line. Each command imports what it needs when it runs, so that `ale --help` is instant.

`main` turns the errors of ALE into lines on stderr and an exit code; the commands only raise them. An error that is no
`AleError` is a fault in the code, and its traceback is shown.
"""

from __future__ import annotations

import gc
import os
import sys
from itertools import takewhile
from typing import Annotated

import typer

from ale import __version__
from ale.cli.commands import add_commands, explain_unknown
from ale.errors import AleError, ConfigError

app = typer.Typer(
    name="ale",
    help="Train agents that act.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
plugins_app = typer.Typer(help="What is installed.", no_args_is_help=True, rich_markup_mode=None)
config_app = typer.Typer(help="Look at run files and settings.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(plugins_app, name="plugins")
app.add_typer(config_app, name="config")
GROUPS = {"plugins": plugins_app, "config": config_app}
"""The groups to which packages may add commands, beside the top level."""


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error too.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@plugins_app.command("list")
def plugins_list(
    kind: Annotated[str | None, typer.Option(help="Only this kind, such as sandbox.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Every installed plugin, read from metadata without importing any."""
    from ale.cli.plugins_command import show

    show(kind, as_json)


@app.command("doctor")
def doctor_(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    timeout_s: Annotated[float, typer.Option(min=1, help="Seconds that one check may take.")] = 45.0,
) -> None:
    """What is installed and whether it works.

    One paste for a bug report, without secrets; the exit code is 1 if something is broken.
    """
    from ale.cli.doctor import doctor

    raise typer.Exit(doctor(as_json, timeout_s))


def main() -> None:
    """Run the command line; a mistake is a sentence on stderr and an exit code, never a traceback."""
    gc.set_threshold(50_000, 20, 20)  # by default a tenth of a run's start goes into looking for garbage in modules
    arguments = sys.argv[1:]
    options = list(takewhile(lambda word: word.startswith("-"), arguments))
    try:
        if "--version" not in options:
            add_commands(app, GROUPS, arguments[len(options) :])
        # In standalone mode typer would print mistakes and Ctrl-C in its own way, and end the process.
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
    except BrokenPipeError:  # `ale plugins list | head -1`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if any(words in str(error) for words in ("No space left", "disk is full")):  # the system's and SQLite's
            sys.exit(f"error: {error}. Make room, then go on with a run by `ale run --resume RUN`.")
        # This is a mistake in the command line; whether the class is typer's or click's depends on typer's version.
        if not callable(getattr(error, "show", None)):
            raise
        error.show()  # type: ignore[attr-defined]
        if "No such command" in str(getattr(error, "message", "")):
            print(explain_unknown(arguments[len(options) :]), file=sys.stderr)
        sys.exit(ConfigError.exit_code)
    if code == 130:  # newer releases of typer turn a Ctrl-C into this number, older ones into an exception
        print("interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)
