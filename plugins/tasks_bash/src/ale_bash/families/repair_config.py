"""Repair a configuration until a check passes: `repair`. Only the check's output says what is wrong.

The hidden test looks at the configuration itself, so that an agent who rewrites the check gains nothing.
"""

from __future__ import annotations

import random

from ale_bash.family import WORDS, Demonstration, Facts, Family, Instance, WrongTurn, draw_words, read_call, shell_call

KEYS = ("host", "zone", "user")


def make_instance(rng: random.Random) -> Instance:
    """A file of three settings, one of them wrong, and a check that names it."""
    *values, wrong, name = draw_words(rng, len(KEYS) + 2)
    wanted = dict(zip(KEYS, values, strict=True))
    bad = rng.choice(KEYS)
    path = f"{name}.conf"
    conf = "".join(f"{key}={wrong if key == bad else value}\n" for key, value in wanted.items())
    check = "".join(f"grep -qx {k}={v} {path} || {{ echo want {k}={v}; exit 1; }}\n" for k, v in wanted.items())
    test = [*(f"grep -qx {k}={v} {path}" for k, v in wanted.items()), f'[ "$(grep -c = {path})" -eq {len(wanted)} ]']
    text = rng.choice((f"Repair {path} so that check.sh passes.", f"Mend {path}: check.sh must pass."))
    solution = f"sed -i s/{bad}=.*/{bad}={wanted[bad]}/ {path}"
    return Instance(text, {path: conf, "check.sh": check + "echo ok\n"}, " && ".join(test), solution, {"path": path})


def demonstrate(facts: Facts, rng: random.Random, turn: WrongTurn) -> Demonstration:
    """Run the check, mend what it names, perhaps check again; a mistake sets another value, or changes no file."""
    path = facts["path"]
    if turn == "error":
        yield shell_call("check.sh")
    if turn == "detour":
        yield read_call(rng, path)
    output = yield shell_call("sh check.sh")
    setting = output.removeprefix("want ").split("\n")[0]
    if "=" not in setting:
        return
    key, _, value = setting.partition("=")
    flag = "-i "
    if turn == "mistake" and rng.random() < 0.7:
        value = rng.choice([word for word in WORDS if word != value])
    elif turn == "mistake":
        flag = ""
    edit = f"sed {flag}s/{key}=.*/{key}={value}/ {path}"
    again = rng.random() if turn != "mistake" else 1.0
    yield shell_call(f"{edit}; sh check.sh" if again < 0.2 else edit)
    if 0.2 <= again < 0.4:
        yield shell_call("sh check.sh")


REPAIR = Family("repair", make_instance, demonstrate)
