"""The tools of a Responses request, which may be in namespaces or be found by a search, as the flat list of a policy.

1. A tool of a namespace is a function named `NAMESPACE__NAME`; its calls carry both names again.
2. A search that the agent runs (`tool_search` with `execution: client`) is a function too. What it has found stands in
   the conversation, and can be called from then on; the policy then sees another list of tools, in a new sequence.
3. A search that a server would run needs no answer: tools whose loading is deferred are given to the policy at once.
4. Other tools that a server would run (web search and so on) are left out. Those whose schema only their vendor's
   models know are refused (`field_tables.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from ale.messages import Message, ModelCall, ToolCall, ToolSpec
from ale_endpoint.dialects.custom_tools import CustomFormat, custom_input, custom_tool
from ale_endpoint.dialects.request_models import Function, Parameters, Shape, Text

SERVER_TYPES = r"^(web_search.*|file_search|code_interpreter|image_generation|mcp|programmatic_tool_calling)$"
SEARCH = "tool_search"


class OwnTool(Function):
    """A tool that the agent runs; a `custom` one takes a text."""

    type: Literal["function", "custom"]
    format: CustomFormat | None = None

    def to_tool(self) -> ToolSpec:
        if self.type == "custom":
            return custom_tool(self.name, self.description, self.format)
        return super().to_tool()


class Namespace(Shape):
    """Tools under a common name."""

    type: Literal["namespace"]
    name: Text
    description: Text | None = None
    tools: list[OwnTool]


class SearchTool(Shape):
    """A search for tools, by the agent or by the server."""

    type: Literal["tool_search"]
    execution: Text | None = None
    description: Text | None = None
    parameters: Parameters | None = None


class ServerTool(Shape):
    """A tool that the server would run itself; here it is left out."""

    type: Annotated[str, Field(pattern=SERVER_TYPES)]


AnyTool = OwnTool | Namespace | SearchTool | ServerTool


class SearchCall(Shape):
    """A search that the policy asked for before."""

    type: Literal["tool_search_call"]
    arguments: Any = None
    call_id: Text | None = None

    def to_call(self) -> ToolCall:
        """The call in ALE's own terms."""
        given = {} if self.arguments is None else self.arguments
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        return ToolCall(self.call_id or "", SEARCH, text)


class SearchOutput(Shape):
    """The tools that a search has found."""

    type: Literal["tool_search_output"]
    tools: list[AnyTool] | None = None
    call_id: Text | None = None

    def to_message(self) -> Message:
        """Return the message that the policy reads; the tools themselves are in its list."""
        names = [tool.name for tool in flatten(self.tools or ())]
        text = f"Tools that can be called now: {', '.join(names)}." if names else "No tool was found."
        return Message("tool", text, tool_call_id=self.call_id or "")


@dataclass(frozen=True, slots=True)
class FlatTool:
    """A tool of the flat list: its name there, and the agent's own names for it."""

    name: str
    tool: OwnTool
    namespace: str | None = None
    about: str | None = None
    """The description of the namespace."""

    def to_tool(self) -> ToolSpec:
        """The tool in ALE's own terms."""
        tool = self.tool.to_tool()
        return replace(tool, name=self.name, description="\n\n".join(filter(None, (self.about, tool.description))))


@dataclass(frozen=True, slots=True)
class ResponsesCall(ModelCall):
    """A call that knows what its answer needs: which tools are in namespaces, and whether the agent searches."""

    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By the name in the flat list: namespace and name."""
    searches: bool = False


def flat_name(name: str, namespace: str | None) -> str:
    """Return the name of a tool in the flat list."""
    return f"{namespace.rstrip('_')}__{name}" if namespace else name


def flatten(tools: Iterable[AnyTool]) -> Iterator[FlatTool]:
    """Yield the agent's tools, those of namespaces too."""
    for tool in tools:
        if isinstance(tool, OwnTool):
            yield FlatTool(tool.name, tool)
        elif isinstance(tool, Namespace):
            for each in tool.tools:
                yield FlatTool(flat_name(each.name, tool.name), each, tool.name, tool.description)


class ToolList:
    """The tools of a request: those that it brings, and those that searches have found."""

    def __init__(self, brought: Sequence[AnyTool], found: Sequence[AnyTool]) -> None:
        flat = {each.name: each for each in (*flatten(found), *flatten(brought))}
        self._flat = [flat[name] for name in dict.fromkeys(each.name for each in (*flatten(brought), *flatten(found)))]
        searches = (tool for tool in brought if isinstance(tool, SearchTool) and tool.execution == "client")
        self._search = next(searches, None)

    def specs(self) -> list[ToolSpec]:
        """Return the tools in ALE's own terms."""
        made = [each.to_tool() for each in self._flat]
        if self._search is None:
            return made
        given = self._search
        search = Function(name=SEARCH, description=given.description, parameters=given.parameters)
        return [*made, search.to_tool()]

    def custom(self) -> frozenset[str]:
        """Return the names of the tools that take a text."""
        return frozenset(each.name for each in self._flat if each.tool.type == "custom")

    def complete(self, call: ModelCall) -> ResponsesCall:
        """Return the call with what its answer needs."""
        own = {part.name: getattr(call, part.name) for part in fields(ModelCall)}
        namespaces = {each.name: (each.namespace, each.tool.name) for each in self._flat if each.namespace}
        return ResponsesCall(**own, namespaces=namespaces, searches=self._search is not None)


def call_item(call: ModelCall, made: ToolCall) -> dict[str, Any]:
    """Return what the item of a reply says of a call, without ids."""
    if isinstance(call, ResponsesCall) and call.searches and made.name == SEARCH:
        return {"type": "tool_search_call", "execution": "client", "arguments": made.parsed_arguments()}
    custom = made.name in call.custom
    kind = {"type": "custom_tool_call", "input": custom_input(made)} if custom else {"type": "function_call"}
    given = {} if custom else {"arguments": made.arguments}
    if isinstance(call, ResponsesCall) and made.name in call.namespaces:
        namespace, name = call.namespaces[made.name]
        return {**kind, "name": name, "namespace": namespace, **given}
    return {**kind, "name": made.name, **given}
