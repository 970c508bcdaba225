"""Compares how transformers and ALE read a policy that ALE wrote: its tokens, its logits, its replies."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ale.messages import Message
from ale.session.tokenizer import ChatTokenizer
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, Sampling

TEXTS = (
    '\n{"name": "shell", "arguments": {"cmd": "cat ../notes.txt | wc -l"}}',
    "I'll count  the 128 files,\n\n\tthen   stop.",
    "caf\u00e9 cafe\u0301 \u4f60\u597d \U0001f600\r\n",
)
CLOSE = 1e-4


def prompt_of(tokenizer: ChatTokenizer) -> list[int]:
    """Return the prompt of a conversation of all texts."""
    return tokenizer.encode(tokenizer.render([Message("user", text) for text in TEXTS], prompt=True))


async def assert_read_alike(folder: Path, engine: InferenceEngine) -> Generation:
    """Check tokens, prompts, greedy replies and log-probabilities. The engine has loaded the folder; returns its
    reply."""
    ours, theirs = ChatTokenizer.load(folder), AutoTokenizer.from_pretrained(str(folder))
    for text in TEXTS:
        assert theirs(text, add_special_tokens=False).input_ids == ours.encode(text)
    prompt, talk = prompt_of(ours), [{"role": "user", "content": text} for text in TEXTS]
    assert theirs.apply_chat_template(talk, add_generation_prompt=True, return_dict=False) == prompt

    stops = ours.stop_token_ids
    made = await engine.generate(
        GenerateRequest(tuple(prompt), Sampling(max_tokens=16, temperature=0.0, stop_token_ids=stops))
    )
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    asked = torch.tensor([prompt])
    reply = model.generate(asked, attention_mask=torch.ones_like(asked), do_sample=False, max_new_tokens=16)
    assert reply[0, len(prompt) :].tolist() == list(made.token_ids)
    with torch.no_grad():
        table = torch.log_softmax(model(reply).logits[0, len(prompt) - 1 : -1].float(), -1)
    wanted = table.gather(-1, torch.tensor(made.token_ids)[:, None])[:, 0]
    assert (wanted - torch.tensor(made.logprobs)).abs().max() < CLOSE
    return made
