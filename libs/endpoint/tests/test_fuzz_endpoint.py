"""The endpoint against its OpenAPI document: what the schemas allow is answered, what they forbid is refused with 400.

schemathesis makes the requests, the same in every run: each field at the bounds of its schema and beyond, then whole
bodies."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from served_sessions import pliable_endpoint

from ale.specs.engine import Sampling
from ale_endpoint.http_app import build_app

ENDPOINT, _ = pliable_endpoint()
SESSION = ENDPOINT.open("fuzzed", Sampling(), max_calls=1 << 30, max_context=1 << 20)
APP = build_app(ENDPOINT.server)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    unsupported_method,
]
NOT_IN_A_SCHEMA = ("not among the tools", "is refused: ", "a reply that somebody else began")
"""Refusals of what a schema allows: by other fields of the request, or by the table of fields."""
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)
SCHEMA.config.generation.update(deterministic=True, max_examples=60)


@SCHEMA.parametrize()
@settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_every_operation_keeps_to_its_description(case: Any) -> None:
    response = case.call(headers={"authorization": f"Bearer {SESSION.api_key}"})
    checks = CHECKS
    if response.status_code == 400 and any(sentence in response.text for sentence in NOT_IN_A_SCHEMA):
        checks = [check for check in CHECKS if check is not positive_data_acceptance]
    case.validate_response(response, checks=checks)


def test_every_route_is_described() -> None:
    described = {(path, method.upper()) for path, methods in SCHEMA.raw_schema["paths"].items() for method in methods}
    served = {(route.path.replace(":path", ""), method) for route in APP.routes for method in route.methods}
    assert {each for each in served if each[1] != "HEAD" or each[0] == "/"} == described
