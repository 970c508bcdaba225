"""Checks what a client asks for in a start, and makes of it a record and the request for a worker.

A client of ROCK always names an image and resources. Its `cpus` and `memory` are limits and take room on a worker. Its
`disk` takes room but limits nothing unless `disk_limits` is set: where files lie in memory, a limit of 50 GiB would be
no limit. A worker that has no images, or enforces no limits, is not asked for them by a client of ROCK; a spec of ALE's
own provider is sent as it is.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
import re
from dataclasses import dataclass
from uuid import uuid4

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from ale.specs.sandbox import Resources, SandboxSpec, host_and_port
from ale_rock.admin.auth import Caller
from ale_rock.admin.record import Need, Record
from ale_rock.admin.settings import Settings
from ale_rock.admin.snapshot_names import is_owned
from ale_rock.admin.workers import Worker
from ale_rock.schemas import ID, CreateSandbox, RockError, StartRequest, size_bytes

MIB = 1 << 20
LONGEST_S = 1e9


def explain(error: ValidationError | RequestValidationError) -> str:
    """Say what is wrong with a request, without its values, which may be secret."""
    wrong = [
        f"{'.'.join(str(part) for part in each['loc'] if part != 'body') or 'body'}: "
        f"{each['msg'].removeprefix('Value error, ')}"
        for each in list(error.errors())[:5]
    ]
    return f"The request does not validate: {'; '.join(wrong)}."


SNAPSHOT_IMAGES = "ale-snapshot:", "ale-checkpoint:"
"""Parts of the names under which container engines keep snapshots as images (`ale_sandbox.containers`)."""


@dataclass(frozen=True, slots=True)
class StartHeaders:
    """What a start asks for by headers, for clients that cannot send more fields."""

    network: str | None = None
    allow: str | None = None
    priority: str | None = None


def make_record(request: StartRequest, headers: StartHeaders, caller: Caller, settings: Settings) -> Record:
    """Return the record of a new sandbox, with the request for a worker. Raises `RockError`."""
    _refuse_unknown_kinds(request)
    sandbox_id = request.sandbox_id or (request.spec.id if request.spec is not None else None) or uuid4().hex
    spec = request.spec if request.spec is not None else _spec(request, headers, settings)
    if spec.from_snapshot is not None and caller.user is not None and not is_owned(caller.user, spec.from_snapshot):
        raise RockError("Only an admin may start a sandbox from any snapshot; name one of yours in from_snapshot.")
    if spec.image is not None and any(mark in spec.image for mark in SNAPSHOT_IMAGES) and caller.user is not None:
        raise RockError("Only an admin may start a sandbox from the image of a snapshot; choose another image.")
    lifetime_s, idle_s = _least(spec.lifetime_s, settings.lifetime_s), _least(spec.idle_s, None)
    spec = spec.model_copy(update={"id": sandbox_id, "lifetime_s": lifetime_s, "idle_s": idle_s})
    if caller.role != "admin":
        _refuse_the_workers_network(spec, settings)
    _refuse_what_is_not_given(spec, caller, settings)
    need = _need(request, spec)
    return Record(
        id=sandbox_id,
        fingerprint=_fingerprint(sandbox_id, spec, need),
        need=need,
        image=spec.image,
        memory=request.memory if request.spec is None else None,
        user=caller.acts_for,
        experiment=caller.experiment,
        namespace=caller.namespace,
        priority=_priority(request, headers, caller),
        labels=dict(spec.labels),
        idle_s=_idle_s(request, spec, settings),
        delete_s=request.auto_delete_seconds,
        archive_s=request.auto_archive_seconds,
        startup_s=request.startup_timeout or settings.startup_timeout_s,
        env=dict(spec.env),
        kept_order=_kept_order(spec, request.spec is None),
        lifetime_s=spec.lifetime_s,
        create_request=CreateSandbox(
            id=sandbox_id,
            spec=spec,
            registry_username=request.registry_username,
            registry_password=request.registry_password,
            keeps_files=request.auto_archive_seconds is not None,
        ),
        for_rock=request.spec is None,
    )


def request_for_worker(record: Record, worker: Worker) -> CreateSandbox:
    """Return the request for this worker, without what it lacks and a client of ROCK names anyway."""
    request = record.create_request
    assert request is not None, "a sandbox that is pending has its request"
    if worker.capabilities is None or not record.for_rock:
        return request
    left_out: dict[str, object] = {}
    if "images" not in worker.capabilities:
        left_out["image"] = None
    if "limits" not in worker.capabilities:
        left_out["resources"] = Resources()
    return request.model_copy(update={"spec": request.spec.model_copy(update=left_out)}) if left_out else request


def _kept_order(spec: SandboxSpec, for_rock: bool) -> str:
    """Return, as JSON, what a restart needs and a database may hold: no values of the environment, no files."""
    kept = spec.model_dump(mode="json", exclude={"id", "env", "files", "image", "from_snapshot"}, exclude_defaults=True)
    return json.dumps({"spec": kept, "env": list(spec.env), "for_rock": for_rock})


def from_snapshot(record: Record, snapshot: str) -> Record:
    """Make a new sandbox start from a snapshot instead of its image."""
    request = record.create_request
    assert request is not None, "a new sandbox has its request"
    spec = request.spec.model_copy(update={"image": None, "from_snapshot": snapshot})
    record.create_request = request.model_copy(update={"spec": spec})
    return record


def request_for_restart(record: Record) -> CreateSandbox:
    """Return the request that starts a sandbox again from the files of its last stop. Raises `RockError`."""
    kept = json.loads(record.kept_order or "{}")
    if record.env is None and kept.get("env"):
        raise RockError(
            f"The values of the environment variables {', '.join(kept['env'])[:500]} of the sandbox {record.id} were "
            "forgotten when the service was restarted, since no secret is written down; start another sandbox."
        )
    spec = SandboxSpec(id=record.id, from_snapshot=record.snapshot, env=record.env or {}, **kept.get("spec", {}))
    record.for_rock = kept.get("for_rock", True)
    return CreateSandbox(id=record.id, spec=spec)


def _refuse_unknown_kinds(request: StartRequest) -> None:
    lacking = {
        f"image_os {request.image_os!r}": request.image_os.casefold() != "linux",
        "use_kata_runtime": request.use_kata_runtime,
        "accelerator_type": request.accelerator_type is not None,
        "a part of a GPU": request.num_gpus is not None and request.num_gpus != int(request.num_gpus),
    }
    for what, asked in lacking.items():
        if asked:
            raise RockError(f"This service does not offer {what}; leave it out of the request.")
    if request.auto_archive_seconds is not None and request.auto_delete_seconds is not None:
        raise RockError("A stopped sandbox is archived or deleted by itself: leave out one of the two times.")
    if request.image is None and request.spec is None:
        raise RockError("The request names no image.")


def _refuse_what_is_not_given(spec: SandboxSpec, caller: Caller, settings: Settings) -> None:
    if not re.fullmatch(ID, spec.id or ""):
        raise RockError(f"A sandbox's id has up to 128 letters, digits and _.-, and not {(spec.id or '')[:200]!r}.")
    if settings.networks is None and spec.network == "full" and caller.role != "admin":
        raise RockError(
            "Only an admin may give a sandbox the network 'full', unless the service's setting `networks` names it; "
            "use 'allow' and name the hosts."
        )
    if settings.networks is not None and spec.network not in settings.networks:
        allowed = ", ".join(settings.networks)
        raise RockError(f"This service gives no sandbox the network {spec.network!r}; it gives {allowed}.")
    if spec.image is not None and not (len(spec.image) <= 512 and spec.image.isprintable()):
        raise RockError("The image's name is not printable, or longer than 512 characters.")


def _refuse_the_workers_network(spec: SandboxSpec, settings: Settings) -> None:
    """Refuse endpoints and addresses in the worker's own network: it connects to them from its machine, so a user
    could reach any of its ports and sockets."""
    if spec.endpoint is not None and spec.endpoint not in settings.endpoints:
        raise RockError(
            "Only an admin may say where the model endpoint of a sandbox is; leave spec.endpoint out, or let the "
            "service's setting `endpoints` name it."
        )
    for entry in spec.allow:
        host = host_and_port(entry)[0].strip("[]")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            continue  # the sandbox's egress gate refuses names that lead to the worker itself
        if not (getattr(address, "ipv4_mapped", None) or address).is_global:
            raise RockError(f"Only an admin may allow {host}, which is in the network of the workers; name a host.")


def _spec(request: StartRequest, headers: StartHeaders, settings: Settings) -> SandboxSpec:
    allow = request.allow or tuple(entry.strip() for entry in (headers.allow or "").split(",") if entry.strip())
    memory = size_bytes(request.memory)
    try:
        return SandboxSpec(
            image=request.image,
            resources=Resources(
                cpus=request.limit_cpus or request.cpus,
                memory_mib=math.ceil(memory / MIB),
                disk_mib=math.ceil(size_bytes(request.disk) / MIB) if request.disk and settings.disk_limits else None,
                gpus=int(request.num_gpus or 0) or None,
            ),
            network=request.network or headers.network or settings.network,
            allow=allow,
            env=request.env,
            lifetime_s=request.lifetime_s,
        )
    except ValidationError as error:
        raise RockError(explain(error)) from None


def _need(request: StartRequest, spec: SandboxSpec) -> Need:
    if request.spec is None:
        disk = size_bytes(request.disk) if request.disk else 0
        return Need(request.cpus, size_bytes(request.memory), disk, int(request.num_gpus or 0))
    asked = spec.resources
    return Need(asked.cpus or 1.0, (asked.memory_mib or 2048) * MIB, (asked.disk_mib or 512) * MIB, asked.gpus or 0)


def _idle_s(request: StartRequest, spec: SandboxSpec, settings: Settings) -> float | None:
    if request.spec is not None:
        return spec.idle_s
    minutes = request.auto_clear_time_minutes
    minutes = request.auto_clear_time if minutes is None else minutes
    return (settings.auto_clear_minutes if minutes is None else minutes) * 60 or None


def _priority(request: StartRequest, headers: StartHeaders, caller: Caller) -> int:
    try:
        priority = int(headers.priority or 0) if request.priority is None else request.priority
    except ValueError:
        priority = 101
    if not -100 <= priority <= 100:
        raise RockError("The header X-Priority is no number from -100 to 100.")
    if priority > caller.priority:
        if (request.priority, headers.priority) != (None, None):
            raise RockError(
                f"The priority {priority} is above {caller.priority}, the highest of this token; ask for less."
            )
        return caller.priority
    return priority


def _least(*limits_s: float | None) -> float | None:
    """Return the shortest of these times. Each is at most `LONGEST_S`, so that now plus it is a valid date."""
    return min((min(limit_s, LONGEST_S) for limit_s in limits_s if limit_s is not None), default=None)


def _fingerprint(sandbox_id: str, spec: SandboxSpec, need: Need) -> str:
    """Return a digest that equal requests share. A spec holds secrets and the digest is stored, so it is one-way.
    Raises `RockError` if the spec holds half a character."""
    try:
        digest = hashlib.sha256(f"{sandbox_id}\n{need}\n{spec.model_dump_json(exclude={'files'})}\n".encode())
        for path in sorted(spec.files):
            digest.update(f"{path}\n{len(spec.files[path])}\n".encode())
            digest.update(spec.files[path])
    except (UnicodeEncodeError, PydanticSerializationError):
        raise RockError("A text of the request holds half a character, which no other program can be sent.") from None
    return digest.hexdigest()
