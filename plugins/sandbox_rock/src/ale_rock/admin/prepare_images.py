"""Brings an image to the workers before a sandbox needs it there (`ale rock warm`)."""

from __future__ import annotations

import asyncio
from typing import Any

from ale_rock.admin.service import Service
from ale_rock.admin.workers import Worker, WorkerFailed
from ale_rock.schemas import SERVICE_ERROR, RockError


async def warm_up(service: Service, image: str) -> list[dict[str, Any]]:
    """Bring an image to every worker that has images; returns for each its name, the seconds that it took, and what
    went wrong, if anything. Raises `RockError` if it went wrong on all of them."""
    choice = service.fleet.choice

    async def on(worker: Worker) -> dict[str, Any]:
        try:
            seconds, problem = await worker.prepare_image(image), None
            if not worker.lost:
                choice.set_images(worker, worker.images | {image})
        except WorkerFailed as error:
            seconds, problem = 0.0, str(error)
        return {"worker": worker.name, "seconds": seconds, "problem": problem}

    everyone = service.fleet.workers.values()
    workers = [each for each in everyone if each.capabilities is None or "images" in each.capabilities]
    if not workers:
        raise RockError("No worker of this service starts sandboxes from images; start one with docker or podman.")
    done = await asyncio.gather(*map(on, workers))
    if all(each["problem"] for each in done):
        raise RockError(f"The image {image} was brought to no worker: {done[0]['problem']}", SERVICE_ERROR)
    return done
