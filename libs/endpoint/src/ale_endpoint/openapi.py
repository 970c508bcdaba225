"""The OpenAPI document of the endpoint (`GET /openapi.json`): what each API accepts, and what it answers.

What it accepts is described by the models that read requests (`Dialect.request`), so that the document and the
endpoint agree; `tests/test_fuzz_endpoint.py` tries both sides. Descriptions hold what a schema cannot express.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from ale_endpoint.dialects import DIALECTS, AnthropicMessages, ChatCompletions, Dialect, Responses

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
NUMBER: Schema = {"type": "integer"}


def shape_object(**properties: Schema) -> Schema:
    """An object that has these keys, and may have others."""
    return {"type": "object", "required": list(properties), "properties": properties}


def several(items: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": items}


def one_of(*words: str) -> Schema:
    """One of these texts."""
    return {"type": "string", "enum": list(words)}


OPENAI_ERROR = shape_object(
    error=shape_object(
        message=TEXT, type=one_of("invalid_request_error", "server_error"), param={"type": "null"}, code=TEXT
    )
)
ANTHROPIC_ERROR = shape_object(type=one_of("error"), error=shape_object(type=TEXT, message=TEXT))
CHOICE = shape_object(
    index=NUMBER,
    message=shape_object(role=one_of("assistant"), content=TEXT_OR_NULL),
    finish_reason=one_of("stop", "length", "tool_calls", "content_filter"),
    logprobs={},
)
CHAT_ANSWER = shape_object(
    id=TEXT,
    object=one_of("chat.completion"),
    created=NUMBER,
    model=TEXT,
    choices={**several(CHOICE), "minItems": 1},
    usage=shape_object(prompt_tokens=NUMBER, completion_tokens=NUMBER, total_tokens=NUMBER),
)
ITEMS = ("message", "reasoning", "function_call", "custom_tool_call", "tool_search_call")
RESPONSES_ANSWER = shape_object(
    id=TEXT,
    object=one_of("response"),
    status=one_of("completed", "incomplete"),
    output=several(
        shape_object(
            type=one_of("message", "reasoning", "function_call", "custom_tool_call", "tool_search_call"), id=TEXT
        )
    ),
    usage=shape_object(input_tokens=NUMBER, output_tokens=NUMBER, total_tokens=NUMBER),
)
MESSAGES_ANSWER = shape_object(
    id=TEXT,
    type=one_of("message"),
    role=one_of("assistant"),
    model=TEXT,
    content=several(shape_object(type=one_of("text", "thinking", "tool_use"))),
    stop_reason=one_of("end_turn", "max_tokens", "tool_use", "stop_sequence", "refusal"),
    stop_sequence=TEXT_OR_NULL,
    usage=shape_object(input_tokens=NUMBER, output_tokens=NUMBER),
)
ANSWERS: dict[type[Dialect], tuple[Schema, Schema]] = {
    ChatCompletions: (CHAT_ANSWER, OPENAI_ERROR),
    Responses: (RESPONSES_ANSWER, OPENAI_ERROR),
    AnthropicMessages: (MESSAGES_ANSWER, ANTHROPIC_ERROR),
}
FAILURES = {
    "400": "The request is wrong, too long for the context, or beyond what the episode may use; it says which.",
    "401": "The key belongs to no open session.",
    "408": "The body did not come in time.",
    "413": "The body is too large.",
    "500": "The answer could not be made; trying again will not help.",
    "503": "The engine failed; try again.",
}


def as_json(description: str, schema: Schema) -> Schema:
    """An answer, described."""
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def operation(dialect: Dialect, answer: Schema | None = None) -> Schema:
    """A POST of a dialect's request that needs a key; its answer is the dialect's own if no other is named."""
    own, error = ANSWERS[type(dialect)]
    success = as_json("The answer; a stream where the request says so.", answer or own)
    if answer is None:
        success["content"]["text/event-stream"] = {"schema": shape_object(data=TEXT)}
    asked = {"schema": {"$ref": f"#/components/schemas/{dialect.request.__name__}"}}
    return {
        "post": {
            "description": "A tool that `tool_choice` names must be one of `tools`.",
            "security": [{"bearer": []}, {"key": []}],
            "requestBody": {"required": True, "content": {"application/json": asked}},
            "responses": {"200": success} | {code: as_json(text, error) for code, text in FAILURES.items()},
        }
    }


def document(version: str) -> Schema:
    """The OpenAPI document, for a version of ALE."""
    _, schemas = models_json_schema(
        [(dialect.request, "validation") for dialect in DIALECTS], ref_template="#/components/schemas/{model}"
    )
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    model, nothing = shape_object(id=TEXT), {"responses": {"200": {"description": "The endpoint is there."}}}
    found = {"200": as_json("The model.", model), "404": as_json("No name.", OPENAI_ERROR)}
    listed = {"200": as_json("The models.", shape_object(data=several(model)))}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ALE model endpoint", "version": version},
        "paths": {
            **{dialect.path: operation(dialect) for dialect in DIALECTS},
            f"{AnthropicMessages.path}/count_tokens": operation(AnthropicMessages(), shape_object(input_tokens=NUMBER)),
            "/v1/models": {"get": {"responses": listed}},
            "/v1/models/{name}": {"get": {"parameters": [name], "responses": found}},
            "/openapi.json": {"get": {"responses": {"200": as_json("This document.", {})}}},
            "/": {"get": nothing, "head": nothing},
        },
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }
