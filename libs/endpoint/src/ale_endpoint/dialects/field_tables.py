"""The fields of the three APIs' requests, and what becomes of them (`fields.py`). This is the one list of them: code,
page and tests go by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ale_endpoint.dialects.fields import OTHERS, REQUEST, Rule, Table, carried, ignored, refused, used

SAMPLING = "the run, or `ale serve`, decides how the policy samples"
FREE = "the policy samples freely: forced tokens would not be sampled from it"
HINT = "a hint for the vendor's cache, queue or bill; answers are the same without"
STORED = "nothing is stored here"
MARK = "ids and states of items that nothing refers to"
SOURCES = "sources of an earlier answer, for readers"
AT_ONCE = "the model has all tools from the beginning"
VENDOR_FILE = "the file is stored at its vendor, where the model cannot read it; send its content"
SERVER_RUN = "a tool that the server would run; there is none here"
VENDOR_TOOL = (
    "its schema is known to its vendor's models alone, so the model would not have the tool; describe it as a function"
)
CODE = "calls come from the model alone, not from code that a server runs"
OWN_CODE: tuple[Any, ...] = ("direct", ["direct"], [])
BLOCK_OF_SERVER = "what a server's own tools did is not known to the model here"
CLIENT = "what the client has read from an earlier answer"
WHOLE = "send the whole conversation"


def response_format(found: Any) -> Any:
    """Write the format of Responses (`text.format`) or Anthropic (`output_config.format`) as chat completions do."""
    if not isinstance(found, Mapping) or found.get("type") != "json_schema":
        return found if found != {"type": "text"} else None
    schema = {key: value for key, value in found.items() if key != "type" and value is not None}
    return {"type": "json_schema", "json_schema": {"name": "answer", **schema}}


def not_parallel(found: Any) -> Any:
    """Write `disable_parallel_tool_use` as `parallel_tool_calls`."""
    return not found if isinstance(found, bool) else found


HINTS: Mapping[str, Rule] = {
    "prompt_cache_breakpoint": ignored(HINT),
    "cache_control": ignored(HINT),
}
TYPED: Mapping[str, Rule] = {"type": used(), **HINTS}
TEXT: Mapping[str, Rule] = {
    **TYPED,
    "text": used(),
    "annotations": ignored(SOURCES),
    "citations": ignored(SOURCES),
    "logprobs": ignored("of an earlier answer"),
    "parsed": ignored(CLIENT),
}
ATTACHED = "refused by a session, or a mark in its place (`scaffold.pictures: leave_out`)"
REFUSAL: Mapping[str, Rule] = {**TYPED, "refusal": used("read as a text")}
SHARED_REQUEST: Mapping[str, Rule] = {
    "model": used("every name is the policy"),
    "stream": used(),
    "temperature": carried(SAMPLING),
    "top_p": carried(SAMPLING),
    "metadata": ignored(STORED),
    "service_tier": ignored(HINT),
}
OPENAI_REQUEST: Mapping[str, Rule] = {
    **SHARED_REQUEST,
    "parallel_tool_calls": carried(FREE),
    "user": carried("names a user to the vendor"),
    "store": ignored(STORED),
    "prompt_cache_key": ignored(HINT),
    "prompt_cache_options": ignored(HINT),
    "prompt_cache_retention": ignored(HINT),
    "safety_identifier": ignored("names a user to the vendor"),
    "moderation": refused("nothing here moderates"),
}
STREAM_OPTIONS: Mapping[str, Rule] = {
    "include_usage": used(),
    "include_obfuscation": ignored("streams are not padded"),
}

CHAT_COMPLETIONS: Table = {
    REQUEST: {
        **OPENAI_REQUEST,
        "messages": used(within="message"),
        "tools": used(within="tool"),
        "tool_choice": used("of `allowed_tools`, the model is given these alone", "choice"),
        "max_tokens": used(),
        "max_completion_tokens": used(),
        "stop": used("ends the answer, not the thoughts"),
        "n": used(),
        "logprobs": used(),
        "top_logprobs": carried("engines know the log-probabilities of the sampled tokens alone", session="refused"),
        "stream_options": used(within="stream_options"),
        "seed": carried(SAMPLING),
        "presence_penalty": carried(SAMPLING),
        "frequency_penalty": carried(SAMPLING),
        "logit_bias": carried(SAMPLING),
        "reasoning_effort": carried(SAMPLING),
        "response_format": carried(FREE),
        "verbosity": carried(SAMPLING),
        "prediction": carried("makes an answer faster, not another one"),
        "web_search_options": carried(SERVER_RUN),
        "audio": refused("answers are texts"),
        "modalities": refused("answers are texts", ["text"]),
        "functions": refused("this API has long had 'tools' for them; send these"),
        "function_call": refused("this API has long had 'tool_choice' for it; send that", "auto"),
        "continue_final_message": Rule(
            "refused",
            "carried",
            "a reply that somebody else began is not the policy's; end with a message of the user or of a tool",
            harmless=(False,),
        ),
        "add_generation_prompt": Rule("refused", "carried", "an answer is always a new reply", harmless=(True,)),
        OTHERS: carried("what no API has is stored with the chunk (`asked`)"),
    },
    "stream_options": STREAM_OPTIONS,
    "message": {
        "role": used("developer is system, function is tool"),
        "content": used(within="part"),
        "name": carried("chat templates write no names"),
        "tool_calls": used(within="call"),
        "tool_call_id": used(),
        "reasoning_content": used(),
        "reasoning": used(),
        "refusal": used("read as the content, if there is none"),
        "annotations": ignored(SOURCES),
        "parsed": ignored(CLIENT),
        "audio": refused("answers are texts"),
        "function_call": refused("this API has long had 'tool_calls' for it; send these"),
        "prefix": Rule("refused", "carried", "a reply that is begun is not the policy's", harmless=(False,)),
        "partial": Rule("refused", "carried", "a reply that is begun is not the policy's", harmless=(False,)),
        "provider_specific_fields": ignored("notes of LiteLLM for itself"),
        "thinking_blocks": ignored("notes of LiteLLM for itself"),
        "cache_control": ignored(HINT),
        OTHERS: carried("what no API has"),
    },
    "part[text]": TEXT,
    "part[refusal]": REFUSAL,
    "part[thinking]": {
        **TYPED,
        "thinking": used("the thoughts of the reply"),
        "closed": ignored(MARK),
        "signature": ignored(MARK),
    },
    "part[image_url]": {**TYPED, "image_url": used(ATTACHED)},
    "part[input_audio]": {**TYPED, "input_audio": used(ATTACHED)},
    "part[file]": {**TYPED, "file": used(ATTACHED)},
    "part[*]": TEXT,
    "call[custom]": {**TYPED, "id": used(), "custom": used(), "index": ignored(MARK)},
    "call[*]": {**TYPED, "id": used(), "function": used(), "index": ignored(MARK)},
    "tool[custom]": {**TYPED, "custom": used("a function with one argument, `input`", "custom")},
    "tool[*]": {**TYPED, "function": used(within="function")},
    "function": {
        "name": used(),
        "description": used(),
        "parameters": used(),
        "strict": carried(FREE),
        "cache_control": ignored(HINT),
        OTHERS: refused("no field of a function in chat completions", session="ignored"),
    },
    "custom": {
        "name": used(),
        "description": used(),
        "format": used("a grammar is written into the description"),
    },
    "choice[allowed_tools]": {**TYPED, "allowed_tools": used()},
    "choice[*]": {**TYPED, "function": used(), "custom": used(), "name": used()},
}

RESPONSES_FUNCTION: Mapping[str, Rule] = {
    **TYPED,
    "name": used(),
    "description": used(),
    "parameters": used(),
    "format": used("a grammar is written into the description"),
    "strict": carried(FREE),
    "defer_loading": ignored(AT_ONCE),
    "allowed_callers": refused(CODE, *OWN_CODE, ["direct", "programmatic"]),
    "async": refused("calls are answered before the model goes on", False),
    "output_schema": ignored("what a tool answers is seen by its answer"),
}
RESPONSES_ITEM: Mapping[str, Rule] = {
    "type": used(),
    "id": ignored(MARK),
    "status": ignored(MARK),
    "caller": refused(CODE, {"type": "direct"}),
    "async": refused("calls are answered before the model goes on", False),
    "call_id": used(),
    "name": used(),
    "namespace": used(),
}

RESPONSES: Table = {
    REQUEST: {
        **OPENAI_REQUEST,
        "input": used(within="item"),
        "instructions": used("the system message"),
        "tools": used(within="tool"),
        "tool_choice": used("of `allowed_tools`, the model is given these alone", "choice"),
        "max_output_tokens": used(),
        "text": used(within="text"),
        "reasoning": used(within="reasoning"),
        "include": used("log-probabilities (message.output_text.logprobs); thoughts are in the answer anyway"),
        "top_logprobs": carried("engines know the log-probabilities of the sampled tokens alone", session="refused"),
        "stream_options": used(within="stream_options"),
        "conversation": refused(f"{STORED}; {WHOLE}"),
        "previous_response_id": refused(f"{STORED}; {WHOLE}"),
        "prompt": refused(f"{STORED}; send the text of the prompt"),
        "background": refused(f"{STORED}; wait for the answer", False),
        "background_options": refused(f"{STORED}; wait for the answer"),
        "truncation": ignored("nothing is cut: a conversation that is too long is an error"),
        "context_management": ignored("nothing is compacted; the conversation is read whole"),
        "max_tool_calls": ignored("a limit for tools that the server would run"),
        "image": refused("answers are texts"),
        "access_programs": refused("a program of the vendor"),
    },
    "stream_options": STREAM_OPTIONS,
    "text": {
        "format": carried(FREE, "response_format", response_format),
        "verbosity": carried(SAMPLING, "verbosity"),
    },
    "reasoning": {
        "effort": carried(SAMPLING, "reasoning_effort"),
        "summary": ignored("thoughts are in the answer whole"),
        "generate_summary": ignored("thoughts are in the answer whole"),
        "context": ignored("the thoughts that are sent are read"),
        "mode": refused("a mode of the vendor's own models", "auto", "standard"),
    },
    "item[message]": {**RESPONSES_ITEM, "role": used(), "content": used(within="part"), "phase": ignored(MARK)},
    "item[]": {**RESPONSES_ITEM, "role": used(), "content": used(within="part"), "phase": ignored(MARK)},
    "item[function_call]": {**RESPONSES_ITEM, "arguments": used(), "parsed_arguments": ignored(CLIENT)},
    "item[custom_tool_call]": {**RESPONSES_ITEM, "input": used()},
    "item[function_call_output]": {**RESPONSES_ITEM, "output": used(within="part")},
    "item[custom_tool_call_output]": {**RESPONSES_ITEM, "output": used(within="part")},
    "item[reasoning]": {
        **RESPONSES_ITEM,
        "content": used("the thoughts of the reply"),
        "summary": used("the thoughts, if there are no others"),
        "encrypted_content": ignored("only its maker can read it"),
    },
    "item[tool_search_call]": {**RESPONSES_ITEM, "arguments": used(), "execution": used()},
    "item[tool_search_output]": {**RESPONSES_ITEM, "execution": used(), "tools": used(within="tool")},
    "item[item_reference]": refused(f"{STORED}; {WHOLE}"),
    "item[*]": refused(f"{BLOCK_OF_SERVER}; {WHOLE} in messages and calls"),
    "part[input_image]": {
        **TYPED,
        "image_url": used(ATTACHED),
        "detail": used(),
        "file_id": refused(VENDOR_FILE),
    },
    "part[input_file]": {
        **TYPED,
        "file_data": used(ATTACHED),
        "filename": used(),
        "file_url": refused("chat completions have no files at URLs; send its content (`file_data`)", session="used"),
        "file_id": refused(VENDOR_FILE, session="used"),
        "detail": ignored("how closely to look at pages"),
    },
    "part[refusal]": REFUSAL,
    "part[*]": TEXT,
    "tool[function]": RESPONSES_FUNCTION,
    "tool[custom]": RESPONSES_FUNCTION,
    "tool[namespace]": {
        **TYPED,
        "name": used("the first part of its tools' names"),
        "description": used("before the descriptions of its tools"),
        "tools": used(within="tool"),
    },
    "tool[web_search*]": ignored(SERVER_RUN),
    "tool[file_search]": ignored(SERVER_RUN),
    "tool[code_interpreter]": ignored(SERVER_RUN),
    "tool[image_generation]": ignored(SERVER_RUN),
    "tool[mcp]": ignored(SERVER_RUN),
    "tool[programmatic_tool_calling]": ignored(SERVER_RUN),
    "tool[tool_search]": {**TYPED, "execution": used(), "description": used(), "parameters": used()},
    "tool[*]": refused(VENDOR_TOOL),
    "choice[allowed_tools]": {**TYPED, "mode": used(), "tools": used()},
    "choice[function]": {**TYPED, "name": used()},
    "choice[custom]": {**TYPED, "name": used()},
    "choice[*]": refused("it chooses a tool that is not the agent's", session="ignored"),
}

BLOCK_TEXTS = "its texts, one after the other"
ANTHROPIC_PARTS: Table = {
    "part[text]": TEXT,
    "part[refusal]": REFUSAL,
    "part[image]": {
        **TYPED,
        "source": used(ATTACHED, "image_source"),
        "transformations": ignored("pictures go out as they come"),
    },
    "image_source[file]": refused(VENDOR_FILE),
    "image_source[*]": {"type": used(), "data": used(), "media_type": used(), "url": used()},
    "part[document]": {
        **TYPED,
        "source": used(f"a text is read; others are {ATTACHED}", "document_source"),
        "title": used("a line before it"),
        "context": used("a line before it"),
        "citations": refused("answers cite nothing", {"enabled": False}, {}, session="ignored"),
    },
    "document_source[base64]": {"type": used(), "data": used(ATTACHED), "media_type": used()},
    "document_source[text]": {"type": used(), "data": used(), "media_type": used()},
    "document_source[content]": {"type": used(), "content": used(within="part")},
    "document_source[url]": {
        "type": used(),
        "url": refused("chat completions have no files at URLs; send its content", session="used"),
    },
    "document_source[file]": {"type": used(), "file_id": refused(VENDOR_FILE, session="used")},
    "document_source[*]": {},
    "part[search_result]": {
        **TYPED,
        "content": used(BLOCK_TEXTS, "part"),
        "source": used("a line before them"),
        "title": used("a line before them"),
        "citations": refused("answers cite nothing", {"enabled": False}, {}, session="ignored"),
    },
    "part[tool_reference]": {**TYPED, "tool_name": used("its name")},
    "part[thinking]": {**TYPED, "thinking": used("the thoughts of the reply"), "signature": ignored(MARK)},
    "part[redacted_thinking]": {**TYPED, "data": ignored("only its maker can read it")},
    "part[tool_use]": {
        **TYPED,
        "id": used(),
        "name": used(),
        "input": used(),
        "caller": refused(CODE, {"type": "direct"}),
        "toolset_name": refused("there are no toolsets"),
    },
    "part[tool_result]": {
        **TYPED,
        "tool_use_id": used(),
        "content": used(within="part"),
        "is_error": used("`[error]` before the content"),
        "toolset_name": refused("there are no toolsets"),
    },
    "part[]": TEXT,
    "part[*]": refused(BLOCK_OF_SERVER),
}
EFFORT: Table = {
    "output_config": {
        "effort": carried(SAMPLING, "reasoning_effort"),
        "format": carried(FREE, "response_format", response_format),
        "task_budget": ignored("a hint; `max_tokens` limits an answer"),
    },
}
NO_PLACE = "chat completions have no place for it"

ANTHROPIC_MESSAGES: Table = {
    REQUEST: {
        **SHARED_REQUEST,
        "messages": used(
            "the last one must not be the assistant's: a reply that is begun is not the policy's", "message"
        ),
        "system": used(within="part"),
        "tools": used(within="tool"),
        "tool_choice": used(within="choice"),
        "max_tokens": used(),
        "stop_sequences": used("they end the answer, not the thoughts"),
        "top_k": carried(SAMPLING),
        "thinking": ignored("how much it thinks is the model's choice; `output_config.effort` is a wish"),
        "output_config": used(within="output_config"),
        "output_format": carried(FREE, "response_format", response_format),
        "cache_control": ignored(HINT),
        "container": refused("there are no containers and skills of a server"),
        "mcp_servers": refused("the server runs no tools; describe them as your own", []),
        "context_management": ignored("nothing is cleared; the conversation is read whole"),
        "compaction": ignored("nothing is compacted; the conversation is read whole"),
        "diagnostics": ignored(HINT),
        "inference_geo": refused("where a model computes is not known here", session="ignored"),
        "speed": ignored(HINT),
        "betas": ignored("what they bring has its own fields"),
        "billing_policy": ignored(HINT),
        "fallback_credit_token": ignored(HINT),
        "fallbacks": refused("calls go to one model", [], session="ignored"),
        "thread": refused(f"{STORED}; {WHOLE}"),
        "user_profile_id": ignored("names a user to the vendor"),
        "workspace_id": ignored("names a user to the vendor"),
    },
    "message": {
        "role": used(),
        "content": used(within="part"),
        "clear_at": ignored("nothing is cleared; the conversation is read whole"),
        "output_config": refused("one effort is for the whole call", session="ignored"),
        "cache_control": ignored(HINT),
        "id": ignored(MARK),
        "type": ignored(MARK),
        "model": ignored(MARK),
        "stop_reason": ignored(MARK),
        "stop_sequence": ignored(MARK),
        "usage": ignored(MARK),
    },
    **ANTHROPIC_PARTS,
    **EFFORT,
    "tool[web_search_*]": ignored(SERVER_RUN),
    "tool[web_fetch_*]": ignored(SERVER_RUN),
    "tool[code_execution_*]": ignored(SERVER_RUN),
    "tool[tool_search_tool_*]": ignored(AT_ONCE),
    "tool[mcp_toolset]": ignored(SERVER_RUN),
    "tool[advisor_*]": ignored(SERVER_RUN),
    "tool[custom]": (
        own_tool := {
            **TYPED,
            "name": used(),
            "description": used(),
            "input_schema": used(),
            "input_examples": used("`examples` of the schema"),
            "strict": carried(FREE),
            "defer_loading": ignored(AT_ONCE),
            "eager_input_streaming": ignored("how the vendor streams"),
            "allowed_callers": refused(CODE, *OWN_CODE),
        }
    ),
    "tool[]": own_tool,
    "tool[*]": refused(VENDOR_TOOL),
    "choice[*]": {
        "type": used(),
        "name": used(),
        "disable_parallel_tool_use": carried(FREE, "parallel_tool_calls", not_parallel),
    },
}
