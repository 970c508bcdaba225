"""This package has the tool formats `hermes`, `llama` and `qwen_xml`."""

from ale_tool_formats.hermes import Hermes
from ale_tool_formats.llama import Llama
from ale_tool_formats.qwen_xml import QwenXML

__all__ = ["Hermes", "Llama", "QwenXML"]
