"""`ale rock env`: EnvHub's environments, their versions, and where each comes from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ale.cli.plugins_command import print_table
from ale.config.yaml_text import parse_yaml
from ale.errors import ConfigError
from ale.registry.validation import nearest_hint
from ale_rock.client.service_client import ALE, ServiceClient
from ale_rock.commands.client import ask_service
from ale_rock.envhub.models import Recipe


def register_env(
    url: str,
    token_env: str | None,
    name: str,
    image: str,
    description: str,
    owner: str,
    tags: list[str],
    spec: Path | None,
) -> None:
    """Register an environment and print the new version."""
    extra = None if spec is None else parse_yaml(_read(spec, "--spec"), f"--spec {spec}")
    if isinstance(extra, dict):
        for key in extra.keys() - Recipe.model_fields.keys():
            hint = nearest_hint(str(key), Recipe.model_fields)
            print(f"note: --spec {spec}: the service does not read '{key}'.{hint}", file=sys.stderr)
    asked = {"env_name": name, "image": image, "owner": owner, "description": description, "tags": tags}

    async def register(client: ServiceClient) -> Any:
        await client.json("POST", "/env/register", {**asked, "extra_spec": extra})
        return await _find(client, [("env_name", name)])

    print(json.dumps(ask_service(url, token_env, register)[0], indent=2))


def list_envs(url: str, token_env: str | None, owner: str | None, tags: list[str], as_json: bool) -> None:
    """Print the newest version of each environment."""
    query = [*([("owner", owner)] if owner else []), *(("tag", tag) for tag in tags)]
    envs = ask_service(url, token_env, lambda client: _find(client, query))
    if as_json:
        print(json.dumps(envs, indent=2))
        return
    rows = [
        (
            each["env_name"],
            str(each["version"]),
            each["image"] or "-",
            each["user"] or "everybody",
            each["owner"] or "-",
            ",".join(each["tags"]) or "-",
        )
        for each in envs
    ]
    print_table([("ENVIRONMENT", "VERSION", "IMAGE", "OF", "OWNER", "TAGS"), *rows])


def get_env(url: str, token_env: str | None, name: str, user: str | None) -> None:
    """Print one environment, or a version of it."""
    found = ask_service(url, token_env, lambda client: _find(client, _named(name, user)))
    print(json.dumps(found[0], indent=2))


def list_versions(url: str, token_env: str | None, name: str, user: str | None, as_json: bool) -> None:
    """Print the versions of an environment, the newest first."""
    query = [*_named(name, user), ("all_versions", "true")]
    versions = ask_service(url, token_env, lambda client: _find(client, query))
    if as_json:
        print(json.dumps(versions, indent=2))
        return
    rows = [
        (
            f"{each['env_name']}@{each['version']}",
            each["image"] or "-",
            (each["image_digest"] or "-")[:19],
            each["registered_by"],
            each["update_at"][:19],
            f"deleted {each['deleted_at'][:19]}" if each["deleted_at"] else "kept",
        )
        for each in versions
    ]
    print_table([("VERSION", "IMAGE", "DIGEST", "REGISTERED BY", "AT (UTC)", "STATE"), *rows])


def delete_env(url: str, token_env: str | None, name: str, user: str | None) -> None:
    """Delete one environment, or one version."""
    ask_service(url, token_env, lambda client: client.json("POST", "/env/delete", dict(_named(name, user))))


def _named(name: str, user: str | None) -> list[tuple[str, str]]:
    return [("env_name", name), *([("user", user)] if user is not None else [])]


async def _find(client: ServiceClient, query: list[tuple[str, str]]) -> list[dict[str, Any]]:
    asked = f"?{urlencode(query)}" if query else ""
    found: list[dict[str, Any]] = (await client.json("GET", f"{ALE}/environments{asked}"))["environments"]
    return found


def _read(file: Path, option: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
