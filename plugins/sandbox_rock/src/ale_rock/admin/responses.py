"""Responses of routes: a ROCK route answers with an envelope and status 200, the others with `{"detail": ...}`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import to_json
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ale_rock.admin.auth import AccessDenied, Caller, Gate
from ale_rock.admin.body_limits import BodyLimitExceeded
from ale_rock.admin.quick_routes import QuickRoute
from ale_rock.admin.settings import Role
from ale_rock.admin.start_requests import StartHeaders, explain
from ale_rock.schemas import BAD_REQUEST, SERVICE_ERROR, Code, Fault, RockError, failed, success

log = logging.getLogger(__name__)
INTERNAL = "The service has failed at this request; its log says how."


def answer(value: object, status: int = 200) -> Response:
    """Answer with JSON."""
    return Response(to_json(value), status, media_type="application/json")


def rock_success(result: object, message: str | None = None) -> Response:
    """Answer a ROCK client."""
    return answer(success(result, message))


def caller_of(request: Request) -> Caller:
    """Return the caller that was admitted."""
    caller: Caller = request.state.caller
    return caller


def headers_of(request: Request) -> StartHeaders:
    """Return the headers that ask for something of a start."""
    get = request.headers.get
    return StartHeaders(get("x-network"), get("x-allow"), get("x-priority"))


def rock_route(gate: Gate) -> type[QuickRoute]:
    """Return the class of ROCK's routes."""

    class RockRoute(QuickRoute):
        """Errors become envelopes."""

        def admit(self, headers: Mapping[str, str]) -> Caller:
            return gate.admit(headers, "admin", "user")

        def refuse(self, error: Exception) -> Response:
            return answer(envelope_of(error))

    return RockRoute


def plain_route(gate: Gate, *roles: Role) -> type[QuickRoute]:
    """Return the class of the other routes."""

    class PlainRoute(QuickRoute):
        """Errors become faults."""

        def admit(self, headers: Mapping[str, str]) -> Caller:
            return gate.admit(headers, *roles)

        def refuse(self, error: Exception) -> Response:
            if isinstance(error, HTTPException):
                if not isinstance(error.__cause__, BodyLimitExceeded):
                    raise error
                return fault_of(error.__cause__)
            return fault_of(error)

    return PlainRoute


def envelope_of(error: Exception) -> dict[str, Any]:
    """Return the envelope that stands for an error."""
    if isinstance(error, RockError):
        return failed(error.code, error.sentence)
    if isinstance(error, AccessDenied):
        return failed(BAD_REQUEST, error.sentence)
    if isinstance(error, ValidationError | RequestValidationError):
        return failed(BAD_REQUEST, explain(error), message="invalid parameter")
    if isinstance(error, HTTPException):
        cause = error.__cause__
        return failed(BAD_REQUEST, str(cause if isinstance(cause, BodyLimitExceeded) else error.detail))
    if isinstance(error, BodyLimitExceeded):
        return failed(BAD_REQUEST, str(error))
    if isinstance(error, ClientDisconnect):
        return failed(BAD_REQUEST, "The client has hung up.")
    return failed(SERVICE_ERROR, _own_fault(error))


def fault_of(error: Exception) -> Response:
    """Return the answer that stands for an error."""
    if isinstance(error, SandboxNotFound):
        return _fault(error.sentence, error.code, 404)
    if isinstance(error, RockError):
        return _fault(error.sentence, error.code, 400 if error.code == BAD_REQUEST else 503)
    if isinstance(error, AccessDenied):
        return _fault(error.sentence, BAD_REQUEST, error.status)
    if isinstance(error, ValidationError | RequestValidationError):
        return _fault(explain(error), BAD_REQUEST, 422)
    if isinstance(error, BodyLimitExceeded):
        return _fault(str(error), BAD_REQUEST, error.status)
    if isinstance(error, ClientDisconnect):
        return _fault("The client has hung up.", BAD_REQUEST, 400)
    return _fault(_own_fault(error), SERVICE_ERROR, 500)


def _own_fault(error: Exception) -> str:
    if isinstance(error, SQLAlchemyError):  # its text would hold the values of the row
        log.error("the database does not answer: %s", type(error).__name__)
        return "The database of the service does not answer; try again later."
    log.error("a request failed", exc_info=error)
    return INTERNAL


def _fault(sentence: str, code: Code, status: int) -> Response:
    return answer(Fault(detail=sentence, fault="caller" if code == BAD_REQUEST else "service"), status)


class SandboxNotFound(RockError):
    """No sandbox of this id exists for this caller."""
