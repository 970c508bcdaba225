"""Plays scripted episodes with a library's own loop, in its own venv: the rewards that an episode of ALE must have.

Standard input: `{"kind", "name", "episodes": [{"seed", "row", "answers"}]}`; output: a list of rewards for each.
"""

import json
import sys


def play_gem(name, episode):
    import gem
    import gem.envs

    env = gem.make(name)
    env.reset(seed=episode["seed"])
    for answer in episode["answers"]:
        _, reward, terminated, truncated, _ = env.step(answer)
        yield reward
        if terminated or truncated:
            return


def play_skyrl(name, episode):
    import skyrl_gym

    row = dict(episode["row"])
    prompt = row.pop("prompt")
    env = skyrl_gym.make(name, extras=row)
    env.init(prompt)
    for answer in episode["answers"]:
        made = env.step(answer)
        yield made["reward"]
        if made["done"]:
            break
    env.close()


asked = json.load(sys.stdin)
play = {"gem": play_gem, "skyrl": play_skyrl}[asked["kind"]]
json.dump([[float(r) for r in play(asked["name"], episode)] for episode in asked["episodes"]], sys.stdout)
