"""What the admin and its workers exchange: plain JSON with ordinary HTTP statuses; an error is a `Fault`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Base64Bytes, BaseModel, Field, StringConstraints

from ale_rock.schemas.common import Name, SandboxId, Spec


class CreateSandbox(BaseModel):
    """`POST {worker}/sandboxes`."""

    id: SandboxId
    spec: Spec
    registry_username: str | None = Field(None, repr=False)
    registry_password: str | None = Field(None, repr=False)
    keeps_files: bool = Field(False, description="Refuse it where the provider could not make a snapshot of it.")


class SandboxCreated(BaseModel):
    """The answer to `CreateSandbox`, once commands can run."""

    id: str
    host_name: str
    host_ip: str
    started_s: float = 0.0
    disk_mib: int | None = Field(None, description="What each of its writable places takes; null: as much as there is.")


class HeldSandbox(BaseModel):
    """An entry of `GET {worker}/sandboxes`."""

    id: str
    alive: bool


class HeldSandboxes(BaseModel):
    """The answer to `GET {worker}/sandboxes`."""

    sandboxes: list[HeldSandbox]


class Removed(BaseModel):
    """The answer to `DELETE {worker}/sandboxes/{id}`."""

    log: str = Field("", description="The end of the sandbox's log.")


class Usage(BaseModel):
    """The answer to `GET {worker}/sandboxes/{id}/stats`; null is what cannot be measured."""

    memory_bytes: int | None = None
    cpu_s: float | None = None
    cpu_cores: float | None = Field(None, description="Busy cores since it was last asked, or since its start.")
    pids: int | None = None
    disk_bytes: int | None = None
    network_in_bytes: int | None = None
    network_out_bytes: int | None = None


class PrepareImage(BaseModel):
    """`POST {worker}/images`: bring this image to the machine."""

    image: Name


class ImagePrepared(BaseModel):
    """The answer to `PrepareImage`."""

    seconds: float = Field(ge=0)


class ImageFound(BaseModel):
    """The answer to `GET {worker}/images?image=`: the id that its engine gives the image of this name now."""

    digest: str | None


class BuildImage(BaseModel):
    """`POST {worker}/builds`, and the same of ALE's own API: an `ImageBuild` of ALE; the files are base64 in JSON."""

    dockerfile: str = Field(min_length=1, repr=False)
    files: dict[str, Base64Bytes] = Field({}, repr=False)
    timeout_s: float = Field(600.0, gt=0, le=86_400)


class ImageBuilt(BaseModel):
    """The answer to `BuildImage`: the name from which sandboxes start."""

    image: str


class TakeSnapshot(BaseModel):
    """`POST {worker}/sandboxes/{id}/snapshot`: keep its files, under this name or one made of it."""

    name: Name


class SnapshotTaken(BaseModel):
    """The answer to `TakeSnapshot`: the name from which sandboxes start. `DELETE {worker}/snapshots?name=` removes
    it."""

    name: str


class HeldSnapshots(BaseModel):
    """The answer to `GET {worker}/snapshots`."""

    snapshots: list[str]


class Fault(BaseModel):
    """An error of the worker: whose fault it was, and a sentence."""

    detail: str
    fault: Literal["caller", "service"] = "service"


class SandboxDescription(BaseModel):
    """The answer to `GET .../sandboxes/{id}/spec`: the spec with which a sandbox was started or reset, without
    its files."""

    spec: Spec = Field(repr=False)
    protocols: list[str] = Field([], description="What ALE's own provider gets from it: `Shells`, ...")


class RefusedConnection(BaseModel):
    """A line of `GET .../sandboxes/{id}/refusals?after=`: what the network policy refused. An empty line says that the
    connection lives, and `null` that the sandbox has ended."""

    protocol: str
    host: str
    port: int
    count: int
    reason: str


class ResetSandbox(BaseModel):
    """`POST .../sandboxes/{id}/reset`: `Resets.reset` of ALE."""

    spec: Spec = Field(repr=False)


class Register(BaseModel):
    """`POST {admin}/apis/workers/v1/register`: a worker, what it offers and which sandboxes live on it."""

    name: Name
    url: Annotated[str, StringConstraints(pattern=r'^https?://[!"$->@-~]+$', max_length=512)]
    token: str | None = Field(None, repr=False, description="What the admin sends as bearer to this worker.")
    provider: str
    capabilities: list[str] | None = Field(
        None,
        description="`Driver.capabilities` of its provider. ROCK's client always names an image and resources; without "
        "`images` or `limits` the admin sends the worker a spec without them. Null: the spec is sent as it is.",
    )
    protocols: list[str] = Field([], description="What ALE's own provider gets from its sandboxes: `Shells`, ...")
    default_image: Name | None = Field(None, description="The image of a sandbox whose spec names none.")
    cpus: float = Field(gt=0, le=1e6)
    memory_bytes: int = Field(gt=0, lt=1 << 60)
    disk_bytes: int = Field(gt=0, lt=1 << 60)
    gpus: int = Field(0, ge=0, le=1 << 20)
    images: list[str] = []
    sandboxes: list[SandboxId] = Field([], description="Ids of the sandboxes that are alive.")


class Registered(BaseModel):
    """The answer to `Register`. The admin removes sandboxes that it does not know as it removes any sandbox."""

    worker_id: str
    heartbeat_s: float


class EndedSandbox(BaseModel):
    """A sandbox that ended by itself while its worker lives."""

    id: str
    reason: str = ""
    log: str = ""


class Heartbeat(BaseModel):
    """`POST {admin}/apis/workers/v1/heartbeat`. `images` is null where nothing has changed."""

    worker_id: str
    ended: list[EndedSandbox] = []
    images: list[str] | None = None
    memory_used_bytes: int | None = Field(None, ge=0)
    disk_free_bytes: int | None = Field(None, ge=0)
    cpu_load: float | None = Field(None, ge=0, description="Load average of the last minute.")
    warm: int = Field(0, ge=0, description="Sandboxes that are kept ready.")


class HeartbeatAnswer(BaseModel):
    """The answer to `Heartbeat`; a worker that is not known registers again."""

    known: bool
