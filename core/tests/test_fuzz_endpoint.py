"""The endpoint against its OpenAPI document: what the schemas allow is answered, what they forbid is refused with 400.

schemathesis makes the requests, the same in every run.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from pliable_engine import pliable_endpoint
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from ale.endpoint.http import build_app
from ale.specs.engine import Sampling

ENDPOINT, ENGINE = pliable_endpoint()
SESSION = ENDPOINT.open("fuzzed", Sampling(), max_calls=1 << 30, max_context=1 << 20)
APP = build_app(ENDPOINT)
BOUNDED = settings(
    max_examples=60, deadline=None, database=None, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
    negative_data_rejection, positive_data_acceptance, unsupported_method,
]  # fmt: skip
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)
OPERATIONS = [operation.ok() for operation in SCHEMA.get_all_operations()]


MODES = schemathesis.GenerationMode
FUZZED = [(each, mode) for each in OPERATIONS for mode in MODES if mode is MODES.POSITIVE or each.method == "post"]


@pytest.mark.parametrize(("operation", "mode"), FUZZED, ids=[f"{each.label} {mode.value}" for each, mode in FUZZED])
def test_every_operation_keeps_to_its_description(operation: Any, mode: schemathesis.GenerationMode) -> None:
    statuses: Counter[int] = Counter()

    @seed(20)
    @BOUNDED
    @given(case=operation.as_strategy(generation_mode=mode))
    def fuzz(case: Any) -> None:
        response = case.call(headers={"authorization": f"Bearer {SESSION.api_key}"})
        checks = CHECKS
        if response.status_code == 400 and "none of the tools" in response.text:  # what no schema can say
            checks = [check for check in CHECKS if check is not positive_data_acceptance]
        case.validate_response(response, checks=checks)
        statuses[response.status_code] += 1

    fuzz()
    # Of the negative cases some have a wrong header alone, which is ignored.
    usual, share = (200, 0.9) if mode is MODES.POSITIVE else (400, 0.4)
    assert statuses[usual] > share * statuses.total(), f"hardly anything was tried: {statuses}"


def test_every_route_is_described() -> None:
    described = {(path, method.upper()) for path, methods in SCHEMA.raw_schema["paths"].items() for method in methods}
    served = {(route.path.replace(":path", ""), method) for route in APP.routes for method in route.methods}
    assert {each for each in served if each[1] != "HEAD" or each[0] == "/"} == described
