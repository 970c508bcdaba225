"""This package has the tool formats `hermes`, `llama` and `qwen_xml`."""

from ale.session.tool_formats.hermes import Hermes
from ale.session.tool_formats.llama import Llama
from ale.session.tool_formats.qwen_xml import QwenXML

__all__ = ["Hermes", "Llama", "QwenXML"]
