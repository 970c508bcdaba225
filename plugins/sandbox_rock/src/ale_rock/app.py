"""The service's HTTP application: the admin's routes, and GEM, EnvHub and E2B's API beside them, which use the admin's
service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from ale_rock.admin import (
    build_routes,
    cluster_routes,
    command_routes,
    log_routes,
    overview,
    page,
    persistence_routes,
    protocol_routes,
    sandbox_routes,
    snapshot_routes,
    status_routes,
    worker_routes,
)
from ale_rock.admin.auth import AccessDenied, Gate
from ale_rock.admin.body_limits import BoundedBodies
from ale_rock.admin.commits import Commits
from ale_rock.admin.fleet import Fleet
from ale_rock.admin.proxy_routes import ProxyRoutes
from ale_rock.admin.quick_routes import QuickRoutes
from ale_rock.admin.responses import fault_of
from ale_rock.admin.service import Service
from ale_rock.admin.settings import Settings
from ale_rock.admin.store import Store
from ale_rock.admin.watch import Watch
from ale_rock.e2b import control_routes as e2b_routes
from ale_rock.e2b.traffic import Traffic
from ale_rock.envhub import routes as envhub_routes
from ale_rock.envhub.image_digests import ImageDigests
from ale_rock.envhub.store import EnvHub
from ale_rock.gem import routes as gem_routes
from ale_rock.gem.environments import Environments
from ale_rock.gem.programs import ProgramPlayer
from ale_rock.gem.service_sandboxes import ServiceSandboxes
from ale_rock.gem.task_sources import TaskSources
from ale_rock.gem.tasks import TaskPlayer


def make_app(settings: Settings) -> FastAPI:
    """Make the application. Its state begins and ends with its lifespan; `app.state.service` is the `Service`."""
    store = Store(settings.database)
    fleet = Fleet(store, settings.keep_ended)
    service = Service(settings, fleet)
    watch, gate, commits = Watch(service), Gate(settings), Commits(service)
    sandboxes, tasks = ServiceSandboxes(service), TaskSources(settings.task_sources)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            await watch.start()
            await commits.start()
            yield
        finally:
            await tasks.close()
            await commits.close()
            await watch.close()

    app = FastAPI(
        title="ALE ROCK service",
        version="1",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # these pages load programs from elsewhere
        redoc_url=None,
    )
    app.state.service, app.state.watch = service, watch
    hub, images = EnvHub(store), ImageDigests(service)
    environments = Environments(sandboxes, ProgramPlayer(sandboxes), TaskPlayer(sandboxes, tasks))
    routers = (
        worker_routes.make_router(watch, gate),
        command_routes.make_action_router(service, gate),
        sandbox_routes.make_router(service, gate),
        command_routes.make_ale_router(service, gate),
        protocol_routes.make_router(service, gate),
        snapshot_routes.make_router(service, gate),
        build_routes.make_router(service, gate),
        status_routes.make_router(service, gate),
        persistence_routes.make_router(service, commits, gate),
        ProxyRoutes(service, gate).router,
        cluster_routes.make_router(service, gate),
        log_routes.make_router(service, gate),
        overview.make_router(service, gate),
        page.make_router(),
        gem_routes.make_router(environments, hub, images, gate),
        envhub_routes.make_router(hub, images, gate),
        envhub_routes.make_health_router(),
        e2b_routes.make_router(service, gate),
    )
    app.router.routes.insert(0, QuickRoutes(route for router in routers for route in router.routes))
    for router in routers:
        app.include_router(router)
    app.add_middleware(BoundedBodies, settings=settings)
    app.add_middleware(Traffic, service=service, gate=gate)

    @app.exception_handler(RequestValidationError)
    @app.exception_handler(AccessDenied)
    async def refuse(request: Request, error: Exception) -> Response:
        return fault_of(error)

    return app
