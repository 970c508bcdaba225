"""The command line of `ale rock`: arguments and help. Each command imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

rock_app = typer.Typer(help="Sandboxes as a service, in the API of ROCK.", no_args_is_help=True, rich_markup_mode=None)
env_app = typer.Typer(help="Environments that the service knows.", no_args_is_help=True, rich_markup_mode=None)
rock_app.add_typer(env_app, name="env")

DEFAULT_PORT = 8080
Url = Annotated[str, typer.Option("--url", metavar="URL", help="The service, as `ale rock serve` prints it.")]
SERVICE = f"http://127.0.0.1:{DEFAULT_PORT}"
TokenEnv = Annotated[
    str | None, typer.Option(metavar="VARIABLE", help="Environment variable with your token; without: none is sent.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Warm = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[IMAGE=]NUMBER",
        help="Keep so many sandboxes ready of each kind that was asked for, or of one image. May be repeated.",
    ),
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", metavar="ray", help="A worker on each node of a Ray that runs.")
]
RayAddress = Annotated[
    str | None,
    typer.Option("--address", metavar="auto|HOST:PORT", help="That Ray; default: auto, which runs on this machine."),
]
OfUser = Annotated[
    str | None, typer.Option("--user", metavar="USER", help="Whose, for an admin; without: everybody's.")
]
EnvName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the environment.")]


@rock_app.command("serve")
def rock_serve(
    host: Annotated[str, typer.Option(help="Address to listen at; others than 127.0.0.1 need tokens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: a free one.")] = DEFAULT_PORT,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the state is kept; default: sqlite:///ale-rock.sqlite")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML: a list of {token, role: admin|user|worker, user}, chmod 600."),
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML with more settings: quotas, shares, limits.")
    ] = None,
    worker: Annotated[
        str, typer.Option(metavar="local|docker|podman|none", help="Sandboxes of this machine; none: only of others.")
    ] = "local",
    worker_settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML with settings of that sandbox provider.")
    ] = None,
    warm: Warm = None,
    worker_cpus: Annotated[
        float | None,
        typer.Option(min=0.01, metavar="N", help="Cores of its machine that a worker offers; default: all."),
    ] = None,
    worker_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory that it offers, such as 16g; default: all.")
    ] = None,
    worker_gpus: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="GPUs that it offers; default: all.")
    ] = None,
    cluster: Cluster = None,
    address: RayAddress = None,
) -> None:
    """Serve ROCK's API, with a worker on this machine or one on each node of a cluster, until Ctrl-C."""
    from ale_rock.commands.serve import serve
    from ale_rock.commands.worker_options import Offer, ray_address

    offer = Offer(worker, worker_settings, tuple(warm or ()), worker_cpus, worker_memory, worker_gpus)
    if worker == "none" and offer != Offer("none", None):
        raise typer.BadParameter("--worker none starts none, so leave out --warm and what begins with --worker-.")
    ray = ray_address(cluster, address)
    serve(host, port, database, token_file, settings, None if worker == "none" else offer, ray)


@rock_app.command("worker")
def rock_worker(
    admin: Annotated[str, typer.Option(metavar="URL", help="The service, as `ale rock serve` prints it.")] = SERVICE,
    sandbox: Annotated[str, typer.Option(metavar="NAME", help="Sandbox provider: local, docker or podman.")] = "local",
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML with settings of the sandbox provider.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at, which the service can reach.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: a free one.")] = 0,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the service reaches it; default: http://HOST:PORT")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name that `ale rock status` shows; default: this machine's.")
    ] = None,
    token_env: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="Environment variable with a token of the role worker.")
    ] = None,
    warm: Warm = None,
    cpus: Annotated[
        float | None, typer.Option(min=0.01, metavar="N", help="Cores that sandboxes may use; default: all.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory that they may use, such as 16g; default: all.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, metavar="N", help="GPUs that they may use; default: all.")] = None,
    cluster: Cluster = None,
    address: RayAddress = None,
    owned: Annotated[bool, typer.Option(hidden=True, help="End when standard input is closed.")] = False,
) -> None:
    """Offer the sandboxes of this machine, or of each node of a cluster, to a service, until Ctrl-C."""
    from ale_rock.commands.worker import work, work_on_ray
    from ale_rock.commands.worker_options import Offer, ray_address

    offer = Offer(sandbox, settings, tuple(warm or ()), cpus, memory, gpus)
    ray = ray_address(cluster, address)
    if ray is None:
        work(admin, offer, host, port, url, name, token_env, owned)
    elif (host, port, url, name) == ("127.0.0.1", 0, None, None):
        work_on_ray(admin, offer, ray, token_env, owned)
    else:
        raise typer.BadParameter("With --cluster each worker has its node's address and name: leave these out.")


@rock_app.command("status")
def rock_status(url: Url = SERVICE, token_env: TokenEnv = None, as_json: AsJson = False) -> None:
    """Show the workers of a service, its queue and its sandboxes."""
    from ale_rock.commands.client import show_status

    show_status(url, token_env, as_json)


@rock_app.command("logs")
def rock_logs(
    sandbox_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="As `ale rock status` lists it; without: the service itself.")
    ] = None,
    url: Url = SERVICE,
    token_env: TokenEnv = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends, or Ctrl-C.")] = False,
) -> None:
    """Print what happened in a sandbox, or lately in the service: starts, ends, lost workers."""
    from ale_rock.commands.logs import show_logs

    show_logs(url, token_env, sandbox_id, follow)


@rock_app.command("warm")
def rock_warm(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="Container image.")],
    url: Url = SERVICE,
    token_env: TokenEnv = None,
) -> None:
    """Bring an image to every worker that has images, before a sandbox needs it there."""
    from ale_rock.commands.client import warm_up

    warm_up(url, token_env, image)


@rock_app.command("shell")
def rock_shell(
    sandbox_id: Annotated[str, typer.Argument(metavar="ID", help="As `ale rock status` lists it.")],
    url: Url = SERVICE,
    token_env: TokenEnv = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0.001, help="Seconds that a line may take.")
    ] = 3600,
) -> None:
    """Open a shell in a sandbox of a service; it reads lines from the terminal or a pipe.

    `exit` or Ctrl-D leaves the shell; the sandbox keeps running.
    """
    from ale_rock.commands.client import shell

    raise typer.Exit(shell(sandbox_id, url, token_env, timeout_s))


@rock_app.command("forward")
def rock_forward(
    sandbox_id: Annotated[str, typer.Argument(metavar="ID", help="As `ale rock status` lists it.")],
    port: Annotated[int, typer.Argument(min=1024, max=65535, help="Where a program listens in the sandbox.")],
    local: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port of this machine; 0: a free one.")
    ] = 0,
    url: Url = SERVICE,
    token_env: TokenEnv = None,
) -> None:
    """Let a port of this machine lead to a program that listens in a sandbox, until Ctrl-C."""
    from ale_rock.commands.forward import forward

    forward(sandbox_id, port, local, url, token_env)


@env_app.command("register")
def env_register(
    name: EnvName,
    image: Annotated[str, typer.Option(help="Container image in which it runs.")],
    description: Annotated[str, typer.Option(help="One sentence.")] = "",
    owner: Annotated[str, typer.Option(help="Who looks after it.")] = "",
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="May be repeated.")] = None,
    spec: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML: how it is made (env, settings, python, start_up, network, resources, agents, sandboxes).",
        ),
    ] = None,
    url: Url = SERVICE,
    token_env: TokenEnv = None,
) -> None:
    """Register an environment: the next version of its name."""
    from ale_rock.commands.env import register_env

    register_env(url, token_env, name, image, description, owner, tag or [], spec)


@env_app.command("list")
def env_list(
    owner: Annotated[str | None, typer.Option(help="Only those of this owner.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="Only those with all these tags.")] = None,
    url: Url = SERVICE,
    token_env: TokenEnv = None,
    as_json: AsJson = False,
) -> None:
    """List the environments that the service knows."""
    from ale_rock.commands.env import list_envs

    list_envs(url, token_env, owner, tag or [], as_json)


@env_app.command("get")
def env_get(name: EnvName, user: OfUser = None, url: Url = SERVICE, token_env: TokenEnv = None) -> None:
    """Print one environment as JSON: the newest version, or that of NAME@VERSION."""
    from ale_rock.commands.env import get_env

    get_env(url, token_env, name, user)


@env_app.command("versions")
def env_versions(
    name: EnvName, user: OfUser = None, url: Url = SERVICE, token_env: TokenEnv = None, as_json: AsJson = False
) -> None:
    """List the versions of an environment: who registered each, when, and the digest of its image."""
    from ale_rock.commands.env import list_versions

    list_versions(url, token_env, name, user, as_json)


@env_app.command("delete")
def env_delete(name: EnvName, user: OfUser = None, url: Url = SERVICE, token_env: TokenEnv = None) -> None:
    """Delete one with all its versions, or NAME@VERSION; sandboxes in which it runs go on."""
    from ale_rock.commands.env import delete_env

    delete_env(url, token_env, name, user)
