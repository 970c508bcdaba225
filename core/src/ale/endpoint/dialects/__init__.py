"""The APIs that agents speak, each a thin translation to one internal request and back (`dialect.py`)."""

from ale.endpoint.dialects.anthropic import AnthropicMessages
from ale.endpoint.dialects.chat import ChatCompletions
from ale.endpoint.dialects.dialect import Dialect, Event, ModelCall
from ale.endpoint.dialects.responses import Responses

DIALECTS: tuple[Dialect, ...] = (ChatCompletions(), Responses(), AnthropicMessages())

__all__ = ["DIALECTS", "AnthropicMessages", "ChatCompletions", "Dialect", "Event", "ModelCall", "Responses"]
