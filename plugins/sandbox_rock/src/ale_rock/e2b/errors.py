"""Errors as E2B's API has them: `{"code": HTTP status, "message": sentence}`."""

from __future__ import annotations

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ale_rock.admin.auth import AccessDenied
from ale_rock.admin.body_limits import BodyLimitExceeded
from ale_rock.admin.responses import SandboxNotFound, answer, fault_of
from ale_rock.admin.start_requests import explain
from ale_rock.schemas import BAD_REQUEST, RockError


class E2bError(Exception):
    """An error with its HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence

    def response(self) -> Response:
        """Return the answer."""
        return answer({"code": self.status, "message": self.sentence}, self.status)


def e2b_error_of(error: Exception) -> E2bError:
    """Return an error of this service as one of E2B."""
    if isinstance(error, E2bError):
        return error
    if isinstance(error, SandboxNotFound):
        return E2bError(404, error.sentence)
    if isinstance(error, RockError):
        return E2bError(400 if error.code == BAD_REQUEST else 503, error.sentence)
    if isinstance(error, AccessDenied | BodyLimitExceeded):
        return E2bError(error.status, str(error))
    if isinstance(error, ValidationError | RequestValidationError):
        return E2bError(400, explain(error))
    if isinstance(error, HTTPException):
        cause = error.__cause__
        return (
            e2b_error_of(cause) if isinstance(cause, BodyLimitExceeded) else E2bError(error.status_code, error.detail)
        )
    if isinstance(error, ClientDisconnect):
        return E2bError(400, "The client has hung up.")
    fault_of(error)  # writes it into the log
    return E2bError(500, "The service has failed at this request; its log says how.")
