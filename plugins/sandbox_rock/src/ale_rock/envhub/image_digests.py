"""Finds which image a name means now: a tag can be moved to another image, which changes the environment of a
version."""

from __future__ import annotations

from urllib.parse import quote

from pydantic import ValidationError

from ale_rock.admin.service import Service
from ale_rock.admin.workers import Worker, WorkerFailed
from ale_rock.schemas import ImageFound

ASK_S = 5.0


class ImageDigests:
    """Asks the workers which image a name means."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def find(self, image: str) -> str | None:
        """Return the digest of a name at a worker that has such an image; None if no worker has it or knows the
        digest."""
        for worker in self._service.fleet.workers.values():
            if image in worker.images and not worker.lost:
                return await _ask(worker, image)
        return None

    async def find_in(self, sandbox_id: str, image: str) -> str | None:
        """Return the digest of a name at the worker of this sandbox; None if the worker does not know it."""
        record = self._service.fleet.live.get(sandbox_id)
        worker = self._service.fleet.workers.get(record.worker or "") if record is not None else None
        return None if worker is None else await _ask(worker, image)


async def _ask(worker: Worker, image: str) -> str | None:
    query = f"image={quote(image, safe='')}"
    try:
        status, data = await worker.ask("GET", "/images", query=query, timeout_s=ASK_S)
        return ImageFound.model_validate_json(data).digest if status == 200 else None
    except (WorkerFailed, ValidationError):
        return None
