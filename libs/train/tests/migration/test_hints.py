"""Keys and plugins of other frameworks in a run file, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ale.errors import ConfigError
from ale_train.config.load import load_run_config
from ale_train.migration import explain_key, explain_plugin

RUN = """
tasks: bash
engine: {use: scripted, answers: [x]}
trainer: null
algorithm: {use: pg}
"""


def refusal(folder: Path, text: str, *overrides: str) -> list[str]:
    file = folder / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_run_config(file, overrides)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "algorithm.adv_estimator=grpo",
            "algorithm.adv_estimator: there is no such key. Here it is algorithm.variant of pg (verl: "
            "algorithm.adv_estimator; ROLL: adv_estimator). For grpo: algorithm: {use: pg, variant: grpo}.",
        ),
        (
            "rollout.n=5",
            "rollout.n: there is no such key. Here it is algorithm.group_size of pg and ipa (verl: "
            "actor_rollout_ref.rollout.n).",
        ),
        (
            "num_generations=8",
            "num_generations: there is no such key. Here it is algorithm.group_size of pg and ipa (TRL: "
            "num_generations).",
        ),
        (
            "rl.rollout_batch_size=64",
            "rl.rollout_batch_size: there is no such key. Here it is rl.prompts_per_step (ROLL: rollout_batch_size). "
            "It counts tasks; divide a number of rollouts by algorithm.group_size.",
        ),
        (
            "max_steps=3",
            "max_steps: there is no such key. Here it is rl.steps (TRL, ROLL, verifiers: max_steps). It counts steps, "
            "not passes over the data.",
        ),
        (
            "entropy_coef=0.1",
            "entropy_coef: there is no such key. Here it is algorithm.entropy_coef of pg, ipa and ppo. rl.min_entropy "
            "stops a run whose policy collapses.",
        ),
        (
            "algorithm.beta=0.1",
            "algorithm.beta: there is no such key. Here it is algorithm.kl_coef of pg and ipa (TRL: beta). A "
            "coefficient of 0, the default, keeps no reference policy.",
        ),
        (
            "critic.optim.lr=1",
            "critic: there is no such key. Here it is trainer.value_head of torch (verl, ROLL: critic.*). The critic "
            "of the algorithm ppo is a value head of the policy, trained with it from the first update on.",
        ),
    ],
)
def test_a_key_of_another_framework_is_said_in_our_words(tmp_path: Path, override: str, sentence: str) -> None:
    assert refusal(tmp_path, RUN, override) == [sentence]


def test_a_section_of_another_framework_is_explained_key_by_key(tmp_path: Path) -> None:
    text = RUN + "actor_rollout_ref: {rollout: {n: 5, temperature: 0.7, made_up: 1}, actor: {optim: {lr: 0.1}}}\n"
    found = [line.partition(" (")[0] for line in refusal(tmp_path, text)]
    assert found == [
        "actor_rollout_ref.rollout.n: there is no such key. Here it is algorithm.group_size of pg and ipa",
        "actor_rollout_ref.rollout.temperature: there is no such key. Here it is rollout.temperature",
        "actor_rollout_ref.rollout.made_up: there is no such key.",
        "actor_rollout_ref.actor.optim.lr: there is no such key. Here it is rl.lr and sft.lr",
    ]


def test_a_misspelt_section_of_ours_is_not_taken_for_one_of_another_framework(tmp_path: Path) -> None:
    (sentence,) = refusal(tmp_path, RUN + "algoritm: {use: pg, gamma: 0.9, beta: 1}\n")
    assert sentence.startswith("algoritm: there is no such key. Did you mean 'algorithm'?")


def test_a_section_that_names_no_plugin_gets_the_hint_too(tmp_path: Path) -> None:
    text = RUN.replace("{use: pg}", "{adv_estimator: rloo}")
    (sentence,) = refusal(tmp_path, text)
    assert sentence.startswith("algorithm.adv_estimator: there is no such key. Here it is algorithm.variant of pg")
    assert sentence.endswith("For rloo: algorithm: {use: pg, variant: rloo}.")


def test_a_key_that_a_plugin_may_have_is_not_explained_while_no_plugin_is_named(tmp_path: Path) -> None:
    text = RUN.replace("{use: pg}", "{gamma: 0.9}")
    assert refusal(tmp_path, text)[0].startswith("algorithm.use: this key is missing; it says which algorithm plugin.")


@pytest.mark.parametrize("key", ["name2", "path", "lr_", "data.made_up", "rollout.made_up", "sft.batch_sizes"])
def test_other_unknown_keys_are_not_explained(key: str) -> None:
    assert explain_key(tuple(key.split(".")), 1) is None


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("algorithm=grpo", "GRPO is {use: pg, variant: grpo}."),
        ("algorithm=GRPO", "GRPO is {use: pg, variant: grpo}."),
        ("algorithm=dr-grpo", "Dr. GRPO is {use: pg, variant: dr_grpo}."),
        ("algorithm=ppo_clip", "PPO's clipped loss is {use: pg, variant: ppo_clip}; with a critic it is {use: ppo}."),
        ("algorithm=reinforce++", "REINFORCE++ is nearly {use: pg, variant: ppo_clip, baseline: batch_mean, "),
        ("engine=hf", "torch samples from Hugging Face models."),
        ("trainer=fsdp", "torch is the trainer; trainer.ranks shards the model by FSDP2."),
        ("sandbox=e2b", "Sandboxes of a cloud (E2B) have no plugin; rock runs sandboxes as a service "),
        ("scaffold=react", "A loop of thoughts and tool calls is iflow (in a sandbox), or chat with its tools."),
    ],
)
def test_a_well_known_name_of_a_plugin_says_what_there_is(tmp_path: Path, override: str, sentence: str) -> None:
    kind, name = override.split("=")
    (found,) = refusal(tmp_path, RUN, override)
    assert found.startswith(f"{kind}: there is no {kind} plugin '{name}'. {sentence}")
    assert " Installed: " in found


def test_an_unknown_plugin_is_not_explained() -> None:
    assert explain_plugin("algorithm", "made_up") is None
    assert explain_plugin("made_up", "grpo") is None
