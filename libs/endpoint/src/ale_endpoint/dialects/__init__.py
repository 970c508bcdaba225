"""The APIs that agents speak, each a thin translation to one internal request and back (`dialect.py`)."""

from ale_endpoint.dialects.anthropic import AnthropicMessages, TokenCount
from ale_endpoint.dialects.chat_completions import ChatCompletions
from ale_endpoint.dialects.dialect import Dialect, Event
from ale_endpoint.dialects.responses import Responses

DIALECTS: tuple[Dialect, ...] = (ChatCompletions(), Responses(), AnthropicMessages())

__all__ = ["DIALECTS", "AnthropicMessages", "ChatCompletions", "Dialect", "Event", "Responses", "TokenCount"]
