"""The OpenAPI document of the endpoint (`GET /openapi.json`): what each API accepts, and what it answers.

The schemas say what the readers of `dialects` do, and no more: what they allow is accepted, what they forbid is refused with 400.
`core/tests/test_fuzz_endpoint.py` holds the two together from both sides. What a schema cannot say stands in its description.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ale.endpoint.dialects import AnthropicMessages, ChatCompletions, Responses
from ale.endpoint.dialects.chat import ROLES
from ale.endpoint.dialects.dialect import MOST_CHOICES

Schema = dict[str, Any]


def shaped(required: Iterable[str] = (), **properties: Schema) -> Schema:
    """An object; what else it holds is ignored."""
    return {"type": "object", "required": list(required), "properties": properties}


def either(*schemas: Schema) -> Schema:
    """One of several."""
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}


def optional(*schemas: Schema) -> Schema:
    """One of several, or null, which is as if it were not there."""
    return either(*schemas, NULL)


def several(items: Schema, at_least: int = 0) -> Schema:
    """A list."""
    return {"type": "array", "items": items, "minItems": at_least}


def one_of(*words: str) -> Schema:
    """One of these texts."""
    return {"type": "string", "enum": list(words)}


def other_than(*words: str) -> Schema:
    """Anything but these texts."""
    return {"not": {"enum": list(words)}}


def ref(name: str) -> Schema:
    """One of the named schemas."""
    return {"$ref": f"#/components/schemas/{name}"}


ANY: Schema = {}
NULL: Schema = {"type": "null"}
TEXT: Schema = {"type": "string"}
YES_OR_NO: Schema = {"type": ["boolean", "null"]}
POSITIVE: Schema = {"type": ["integer", "null"], "minimum": 1}
OPTIONAL_TEXT: Schema = {"type": ["string", "null"]}
TEXTS = optional(TEXT, several(TEXT))
COMMON = {"model": OPTIONAL_TEXT, "stream": YES_OR_NO}
PARAMETERS = optional(shaped(properties={"type": ["object", "null"]}))
NUMBER: Schema = {"type": "integer"}


def text_part(**fields: Schema) -> Schema:
    """A part of a content, whatever the API calls it: only text is supported."""
    return either(shaped(["text"], text=TEXT, **fields), shaped(["refusal"], refusal=TEXT, **fields))


CONTENT = optional(TEXT, several(either(TEXT, text_part())))


def chat_request() -> Schema:
    """What `ChatCompletions.read` accepts."""
    named = shaped(["name"], name=TEXT)
    call = shaped(["function"], id=OPTIONAL_TEXT, function=shaped(["name"], name=TEXT, arguments=ANY))
    message = shaped(
        ["role"], role=one_of(*ROLES), content=CONTENT, tool_calls=optional(several(call)), tool_call_id=OPTIONAL_TEXT
    )
    tool = shaped(["function"], function=shaped(["name"], name=TEXT, description=OPTIONAL_TEXT, parameters=PARAMETERS))
    choice = optional(
        one_of("auto", "none", "required"),
        shaped(["function"], function=named),
        {**named, "not": {"required": ["function"]}},
    )
    return shaped(
        ["messages"], messages=several(message, 1), tools=optional(several(tool)), tool_choice=choice,
        max_tokens=POSITIVE, max_completion_tokens=POSITIVE, stop=TEXTS, n={**POSITIVE, "maximum": MOST_CHOICES},
        stream_options={"type": ["object", "null"]}, logprobs=YES_OR_NO, **COMMON,
    )  # fmt: skip


def responses_request() -> Schema:
    """What `Responses.read` accepts."""
    message = shaped(["role"], type=one_of("message"), role=one_of(*ROLES), content=CONTENT)
    call = shaped(
        ["type", "name"],
        type=one_of("function_call", "custom_tool_call"),
        name=TEXT,
        id=OPTIONAL_TEXT,
        call_id=OPTIONAL_TEXT,
    )
    output = either({"type": ["string", "object", "number", "boolean", "null"]}, several(either(TEXT, text_part())))
    answer = shaped(
        ["type"], type=one_of("function_call_output", "custom_tool_call_output"), output=output, call_id=OPTIONAL_TEXT
    )
    said = either(message, call, answer)
    items = {**several(either(said, shaped(["type"], type=one_of("reasoning"))), 1), "contains": said}
    tool = either(
        shaped(["type", "name"], type=one_of("function"), name=TEXT, description=OPTIONAL_TEXT, parameters=PARAMETERS),
        shaped(["type", "name"], type=one_of("custom"), name=TEXT, description=OPTIONAL_TEXT),
        shaped(type=other_than("function", "custom")),
    )
    return shaped(
        ["input"], input=either(TEXT, items), instructions=OPTIONAL_TEXT, tools=optional(several(tool)),
        tool_choice=optional(one_of("auto", "none", "required"), {"type": "object"}), max_output_tokens=POSITIVE,
        previous_response_id=NULL, **COMMON,
    )  # fmt: skip


def messages_request() -> Schema:
    """What `AnthropicMessages.read` accepts."""
    thoughts = ("thinking", "redacted_thinking")
    thought = shaped(["type"], type=one_of(*thoughts))
    use = shaped(
        ["type", "name"], type=one_of("tool_use"), name=TEXT, id=OPTIONAL_TEXT, input={"type": ["object", "null"]}
    )
    result = shaped(["type"], type=one_of("tool_result"), content=CONTENT, tool_use_id=OPTIONAL_TEXT)

    def message(role: str, *blocks: Schema, kinds: tuple[str, ...] = ()) -> Schema:
        block = either(TEXT, thought, *blocks, text_part(type=other_than(*thoughts, *kinds)))
        return shaped(["role"], role=one_of(role), content=optional(TEXT, several(block)))

    spoken = either(
        message("user", result, kinds=("tool_result",)),
        message("assistant", use, kinds=("tool_use",)),
        message("system"),
    )
    kind = optional(one_of("custom"))
    tool = either(
        shaped(["name"], name=TEXT, type=kind, description=OPTIONAL_TEXT, input_schema=PARAMETERS),
        shaped(["type", "name"], name=TEXT, type={"not": kind}),
    )
    choice = optional(
        shaped(["type"], type=one_of("auto", "any", "none")),
        shaped(["type", "name"], type=one_of("tool"), name=TEXT),
    )
    return shaped(
        ["messages"], messages=several(spoken, 1), system=CONTENT, tools=optional(several(tool)), tool_choice=choice,
        max_tokens=POSITIVE, stop_sequences=TEXTS, **COMMON,
    )  # fmt: skip


# --- answers

OPENAI_ERROR = shaped(
    ["error"],
    error=shaped(
        ["message", "type", "param", "code"],
        message=TEXT,
        type=one_of("invalid_request_error", "server_error"),
        param=NULL,
        code=TEXT,
    ),
)
ANTHROPIC_ERROR = shaped(
    ["type", "error"], type=one_of("error"), error=shaped(["type", "message"], type=TEXT, message=TEXT)
)
CHAT_ANSWER = shaped(
    ["id", "object", "created", "model", "choices", "usage"], id=TEXT, object=one_of("chat.completion"), created=NUMBER,
    model=TEXT, usage=shaped(["prompt_tokens", "completion_tokens", "total_tokens"]),
    choices=several(
        shaped(
            ["index", "message", "finish_reason", "logprobs"], index=NUMBER,
            message=shaped(["role", "content"], role=one_of("assistant"), content=OPTIONAL_TEXT),
            finish_reason=one_of("stop", "length", "tool_calls"),
        ), 1,
    ),
)  # fmt: skip
RESPONSES_ANSWER = shaped(
    ["id", "object", "status", "output", "usage"], id=TEXT, object=one_of("response"), status=one_of("completed", "incomplete"),
    output=several(shaped(["type", "id"], type=one_of("message", "function_call", "custom_tool_call"), id=TEXT)),
    usage=shaped(["input_tokens", "output_tokens", "total_tokens"]),
)  # fmt: skip
MESSAGES_ANSWER = shaped(
    ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"], id=TEXT, type=one_of("message"),
    role=one_of("assistant"), model=TEXT, content=several(shaped(["type"], type=one_of("text", "tool_use"))),
    stop_reason=one_of("end_turn", "max_tokens", "tool_use", "stop_sequence"), stop_sequence=OPTIONAL_TEXT,
    usage=shaped(["input_tokens", "output_tokens"]),
)  # fmt: skip
SCHEMAS: dict[str, Schema] = {
    "ChatRequest": chat_request(), "ChatAnswer": CHAT_ANSWER, "ResponsesRequest": responses_request(),
    "ResponsesAnswer": RESPONSES_ANSWER, "MessagesRequest": messages_request(), "MessagesAnswer": MESSAGES_ANSWER,
    "TokenCount": shaped(["input_tokens"], input_tokens=NUMBER), "OpenAIError": OPENAI_ERROR, "AnthropicError": ANTHROPIC_ERROR,
    "Model": shaped(["id"], id=TEXT), "Models": shaped(["data"], data=several(ref("Model"))),
}  # fmt: skip
FAILURES = {
    "400": "The request is wrong, too long for the context, or beyond what the episode may use; it says which.",
    "401": "The key belongs to no open session.",
    "408": "The body did not come in time.",
    "413": "The body is too large.",
    "500": "The answer could not be made; trying again will not help.",
    "503": "The engine failed; try again.",
}
CHOICE = "A tool that `tool_choice` names must be one of `tools`."


def answers(schema: str, error: str | None = None, *, streams: bool = False) -> Schema:
    """What an operation may answer, by status."""
    content: Schema = {"application/json": {"schema": ref(schema)}}
    if streams:
        content["text/event-stream"] = {"schema": shaped(["data"], event=TEXT, data=TEXT)}
    made: Schema = {"200": {"description": "The answer; a stream where the request says so.", "content": content}}
    if error is not None:
        failed = {"application/json": {"schema": ref(error)}}
        made |= {status: {"description": said, "content": failed} for status, said in FAILURES.items()}
    return made


def call(name: str, asked: str, answered: str, error: str, *, streams: bool = True) -> Schema:
    """A POST that needs a key."""
    operation = {
        "operationId": name,
        "description": CHOICE,
        "security": [{"bearer": []}, {"key": []}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": ref(asked)}}},
        "responses": answers(answered, error, streams=streams),
    }
    return {"post": operation}


def document(version: str) -> Schema:
    """The OpenAPI document, for a version of ALE."""
    anything = {"200": {"description": "It is there."}}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    unknown = {"404": {"description": "No name.", "content": {"application/json": {"schema": ref("OpenAIError")}}}}
    described = {"200": {"description": "This document.", "content": {"application/json": {"schema": ANY}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ALE model endpoint", "version": version},
        "paths": {
            ChatCompletions.path: call("chat", "ChatRequest", "ChatAnswer", "OpenAIError"),
            Responses.path: call("responses", "ResponsesRequest", "ResponsesAnswer", "OpenAIError"),
            AnthropicMessages.path: call("messages", "MessagesRequest", "MessagesAnswer", "AnthropicError"),
            f"{AnthropicMessages.path}/count_tokens": call(
                "count_tokens", "MessagesRequest", "TokenCount", "AnthropicError", streams=False
            ),
            "/v1/models": {"get": {"operationId": "models", "responses": answers("Models")}},
            "/v1/models/{name}": {
                "get": {"operationId": "model", "parameters": [name], "responses": answers("Model") | unknown}
            },
            "/openapi.json": {"get": {"operationId": "openapi", "responses": described}},
            "/": {
                "get": {"operationId": "here", "responses": anything},
                "head": {"operationId": "there", "responses": anything},
            },
        },
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }
