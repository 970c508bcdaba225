"""Rename files by extension: `rename`. One more file, of another kind, must stay as it is."""

from __future__ import annotations

import random

from ale_bash.family import Demonstration, Facts, Family, Instance, WrongTurn, content_test, draw_words, shell_call

ENDINGS = ("txt", "log", "csv", "md")


def make_instance(rng: random.Random) -> Instance:
    """Two files to rename, one to leave."""
    old, new, kept = rng.sample(ENDINGS, 3)
    names, contents = draw_words(rng, 3), draw_words(rng, 3)
    before = [f"{name}.{ending}" for name, ending in zip(names, (old, old, kept), strict=True)]
    after = [f"{name}.{ending}" for name, ending in zip(names, (new, new, kept), strict=True)]
    checks = [content_test(path, content) for path, content in zip(after, contents, strict=True)]
    checks += [f"[ ! -e {path} ]" for path in before[:2]]
    text = rng.choice((f"Rename every .{old} file to .{new}.", f"Give all .{old} files the ending .{new}."))
    files = {path: f"{content}\n" for path, content in zip(before, contents, strict=True)}
    return Instance(text, files, " && ".join(checks), _loop("mv", old, new), {"old": old, "new": new})


def _loop(command: str, old: str, new: str) -> str:
    return f"for f in *.{old}; do {command} $f ${{f%.{old}}}.{new}; done"


def demonstrate(facts: Facts, rng: random.Random, turn: WrongTurn) -> Demonstration:
    """mv in a loop, or file by file after a look; a mistake copies, or forgets a file."""
    old, new = facts["old"], facts["new"]
    if turn == "error":
        yield shell_call(f"mv *.{old} *.{new}")
    if turn == "detour":
        yield shell_call("ls")
    if turn == "mistake" and rng.random() < 0.5:
        yield shell_call(_loop("cp", old, new))
    elif turn != "mistake" and (turn == "detour" or rng.random() < 0.5):
        yield shell_call(_loop("mv", old, new))
    else:
        listing = yield shell_call(rng.choice(("ls", f"ls *.{old}")))
        names = [n.removesuffix(f".{old}") for n in listing.split("\n") if n.endswith(f".{old}")]
        for name in names[: 1 if turn == "mistake" else None]:
            yield shell_call(f"mv {name}.{old} {name}.{new}")


RENAME = Family("rename", make_instance, demonstrate)
