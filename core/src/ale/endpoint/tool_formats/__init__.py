"""The forms of tool calls that come with the core, plugins like any other: `hermes`, `llama`, `qwen_xml`."""

from ale.endpoint.tool_formats.hermes import Hermes
from ale.endpoint.tool_formats.llama import Llama
from ale.endpoint.tool_formats.qwen_xml import QwenXML

__all__ = ["Hermes", "Llama", "QwenXML"]
