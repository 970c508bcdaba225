"""`ale serve` with vLLM and with SGLang: one door to whichever engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

environments = pytest.importorskip(
    "ale_engines.server.python_environments", reason="no engine that is a server is installed"
)
HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_three_apis_are_answered_and_the_server_ends_with_the_command(
    serving: Callable[..., AbstractContextManager[Any]], model: Path, engine: str
) -> None:
    if environments.find_python(engine, "cpu") is None:
        pytest.skip(f"{engine}'s environment is not installed: `ale engine install {engine} --cpu`")
    settings = ("engine.device=cpu", "engine.dtype=float32", "engine.threads=1", "rollout.max_tokens=12")
    with serving(model, "--engine", engine, "--port", "0", *settings) as served:
        served.wait_until_ready()
        openai_client = openai.OpenAI(base_url=f"{served.origin}/v1", api_key="me", max_retries=0)
        with openai_client, anthropic.Anthropic(base_url=served.origin, api_key="me", max_retries=0) as claude:
            chat = openai_client.chat.completions.create(model="tiny", messages=HELLO, temperature=0)
            assert chat.usage is not None
            assert 0 < chat.usage.completion_tokens <= 12
            response = openai_client.responses.create(model="tiny", input="hello", temperature=0, store=False)
            assert response.output_text == chat.choices[0].message.content
            message = claude.messages.create(model="tiny", messages=HELLO, max_tokens=5)
            assert 0 < message.usage.output_tokens <= 5
        assert served.end() == 0
    assert "ended: calls 3 answered" in served.printed
