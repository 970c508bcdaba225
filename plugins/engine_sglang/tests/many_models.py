# mypy: disable-error-code="import-not-found"
"""Lets SGLang serve one model after the other, with ALE's changes and without HTTP; SGLang's Python runs it.

Its arguments are SERVER_FOLDER --device=cpu. `ale_testing.forked_cases` gives it cases: `arguments` of SGLang's server,
`folders`, of which the first is started with and the others are updates, `prompts` and `max_tokens`. The answer has for
each folder the tokens, their log-probabilities and the fingerprint."""

from __future__ import annotations

import os
import sys
from typing import Any

sys.path.insert(0, sys.argv[1])
import ale_sglang_server
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.io_struct import CheckWeightsReqInput
from sglang.srt.server_args import prepare_server_args


def serve(case: dict[str, Any]) -> list[Any]:
    """Return what is sampled of each prompt, and the fingerprint, with each folder's weights."""
    others = ale_sglang_server.find_other_models(case["folders"][0])
    os.environ["SGLANG_DISABLED_MODEL_ARCHS"] = ",".join(others)
    engine = Engine(server_args=prepare_server_args([*case["arguments"], "--sampling-backend", "pytorch"]))
    sampling = {"temperature": 1.0, "max_new_tokens": case["max_tokens"], "ignore_eos": True, "sampling_seed": 1}
    answers = []
    for number, folder in enumerate(case["folders"]):
        if number:
            engine.update_weights_from_disk(folder)
        made = engine.generate(input_ids=case["prompts"], sampling_params=sampling, return_logprob=True)
        entries = [one["meta_info"]["output_token_logprobs"] for one in made]
        tokens, logprobs = ([[entry[at] for entry in each] for each in entries] for at in (1, 0))
        request = CheckWeightsReqInput(action="ale_fingerprint", selector="target")
        checked = engine.loop.run_until_complete(engine.tokenizer_manager.check_weights(request, None))
        answers.append([tokens, logprobs, checked[2][0]["checksums"]])
    return answers


ale_sglang_server.fork_processes()
