"""The worker's routes about images: bring one here before a sandbox needs it, build one, say which one a name means."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ale.errors import TaskError
from ale.specs.sandbox_protocols import BuildsDockerfiles, lacks
from ale.task import ImageBuild
from ale_rock.http.disconnects import while_connected
from ale_rock.schemas import BuildImage, Fault, ImageBuilt, ImageFound, ImagePrepared, PrepareImage, RockError
from ale_rock.worker.responses import EXPECTED, fault_of, json_response, read_body
from ale_rock.worker.service import WorkerService
from ale_rock.worker.validation import readable
from ale_sandbox.containers.provider import ContainerProvider


class ImageRoutes:
    """The routes of one worker."""

    def __init__(self, service: WorkerService) -> None:
        self.service = service
        self.routes = [
            Route("/images", self.prepare, methods=["POST"]),
            Route("/images", self.find, methods=["GET"]),
            Route("/builds", self.build, methods=["POST"]),
        ]

    async def prepare(self, request: Request) -> Response:
        """Bring an image here; the answer comes when sandboxes start from it without waiting."""
        try:
            asked = PrepareImage.model_validate_json(await read_body(request, self.service.settings.max_body_bytes))
            seconds = await while_connected(request, self.service.prepare_image(asked.image))
        except EXPECTED as error:
            return fault_of(error)
        return json_response(ImagePrepared(seconds=seconds))

    async def find(self, request: Request) -> Response:
        """Say which image a name means here now; null where there is none, or no images at all."""
        provider, image = self.service.provider, request.query_params.get("image", "")
        try:
            found = await provider.engine.find_image(image) if isinstance(provider, ContainerProvider) else None
        except EXPECTED as error:
            return fault_of(error)
        return json_response(ImageFound(digest=found and f"sha256:{found.removeprefix('sha256:')}"))

    async def build(self, request: Request) -> Response:
        """Build the image of a task here, unless it is here; a caller that hangs up ends the build."""
        service, provider = self.service, self.service.provider
        try:
            asked = BuildImage.model_validate_json(await read_body(request, service.settings.max_body_bytes))
            if not isinstance(provider, BuildsDockerfiles) or "builds" not in provider.capabilities:
                raise RockError(str(lacks(provider, BuildsDockerfiles)))
            wanted = ImageBuild(dockerfile=asked.dockerfile, files=dict(asked.files), timeout_s=asked.timeout_s)
            image = await while_connected(request, provider.image_from(wanted))
        except TaskError as error:
            return json_response(Fault(detail=readable(str(error)), fault="caller"), 422)
        except EXPECTED as error:
            return fault_of(error)
        service.images.add(image)
        return json_response(ImageBuilt(image=image))
