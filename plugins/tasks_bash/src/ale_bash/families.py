"""The families: eight kinds of small shell tasks of one to five turns, each with real shell semantics."""

from __future__ import annotations

import base64
import random

from ale_bash.family import OUTPUTS, Demonstration, Family, Instance, Turn, holds, look, put, shell, words

Facts = dict[str, str]


def _output(rng: random.Random) -> str:
    return rng.choice(OUTPUTS)


# -- write: a word into a file -------------------------------------------------------------------------------


def make_write(rng: random.Random) -> Instance:
    """Write a word into a file."""
    word, name = words(rng, 2)
    path = f"{name}.txt"
    text = rng.choice(["Write {w} into {p}.", "Put the word {w} into {p}."]).format(w=word, p=path)
    return Instance(text, {}, holds(path, word), {"word": word, "path": path})


def show_write(f: Facts, rng: random.Random, turn: Turn) -> Demonstration:
    """Write; a mistake puts the file's name where the word belongs."""
    if turn == "error":
        yield look(rng, f["path"])
    if turn == "detour":
        yield shell("ls")
    word = f["path"].removesuffix(".txt") if turn == "mistake" else f["word"]
    yield put(rng, word, f["path"])


# -- count: lines that hold a word ----------------------------------------------------------------------------


def make_count(rng: random.Random) -> Instance:
    """Count the lines of a file that hold a word."""
    word, other, third, name = words(rng, 4)
    hits, misses = rng.randint(1, 6), rng.randint(2, 5)
    lines = [word] * hits + [rng.choice([other, third]) for _ in range(misses)]
    rng.shuffle(lines)
    path, out = f"{name}.txt", _output(rng)
    text = rng.choice(["Count the lines with {w} in {p}. Write the number to {o}.", "How many lines of {p} have {w}? Write it to {o}."])
    instruction = text.format(w=word, p=path, o=out)
    return Instance(instruction, {path: "\n".join(lines) + "\n"}, holds(out, str(hits)), {"word": word, "path": path, "out": out})


def show_count(f: Facts, rng: random.Random, turn: Turn) -> Demonstration:
    """grep; a mistake counts all lines."""
    word, path, out = f["word"], f["path"], f["out"]
    if turn == "error":
        yield shell(f"grep -c {word} {word}.txt")
    if turn == "detour":
        yield look(rng, path)
    if turn == "mistake":
        yield shell(rng.choice([f"wc -l < {path} > {out}", f"grep {word} {path} > {out}"]))
        return
    if rng.random() < 0.6:
        yield shell(f"grep -c {word} {path} > {out}")
    else:
        answer = yield shell(f"grep -c {word} {path}")
        yield put(rng, answer.split("\n")[0], out)


# -- find: the file that holds a word -------------------------------------------------------------------------


def make_find(rng: random.Random) -> Instance:
    """Find the file that holds a word and write down its name."""
    word, *rest = words(rng, 9)
    names, contents = [f"{n}.log" for n in rest[:4]], rest[4:]
    hit = rng.randrange(len(names))
    files = {n: (word if i == hit else contents[i]) + "\n" for i, n in enumerate(names)}
    out = _output(rng)
    text = rng.choice(["Which log file holds {w}? Write its name to {o}.", "Find the log file with {w} and write its name to {o}."])
    return Instance(text.format(w=word, o=out), files, holds(out, names[hit]), {"word": word, "out": out})


def show_find(f: Facts, rng: random.Random, turn: Turn) -> Demonstration:
    """grep -l; a mistake writes the line and not the name."""
    word, out = f["word"], f["out"]
    if turn == "error":
        yield look(rng, f"{word}.log")
    if turn == "detour":
        yield shell("ls")
    if turn == "mistake":
        yield shell(rng.choice([f"grep {word} *.log > {out}", f"ls *.log > {out}"]))
        return
    if rng.random() < 0.6:
        yield shell(f"grep -l {word} *.log > {out}")
    else:
        answer = yield shell(f"grep -l {word} *.log")
        yield put(rng, answer.split("\n")[0], out)


# -- rename: by extension -------------------------------------------------------------------------------------


def make_rename(rng: random.Random) -> Instance:
    """Rename files by their extension."""
    old, new = rng.sample(["txt", "log", "csv", "md"], 2)
    names, contents = words(rng, 2), words(rng, 2)
    files = {f"{n}.{old}": c + "\n" for n, c in zip(names, contents, strict=True)}
    checks = [f"[ ! -e {n}.{old} ] && {holds(f'{n}.{new}', c)}" for n, c in zip(names, contents, strict=True)]
    text = rng.choice(["Rename every .{a} file to .{b}.", "Give all .{a} files the ending .{b}."])
    return Instance(text.format(a=old, b=new), files, " && ".join(checks), {"old": old, "new": new})


def show_rename(f: Facts, rng: random.Random, turn: Turn) -> Demonstration:
    """mv in a loop, or file by file after a look; a mistake copies, or forgets one."""
    old, new = f["old"], f["new"]
    if turn == "error":
        yield shell(f"mv *.{old} *.{new}")
    loop = f"for f in *.{old}; do mv $f ${{f%.{old}}}.{new}; done"
    if turn == "mistake" and rng.random() < 0.5:
        yield shell(loop.replace("mv", "cp"))
        return
    if turn == "detour" or turn == "mistake" or rng.random() < 0.5:
        listing = yield shell("ls")
        if turn != "detour":
            names = [n.removesuffix(f".{old}") for n in listing.split("\n") if n.endswith(f".{old}")]
            for name in names[: 1 if turn == "mistake" else None]:
                yield shell(f"mv {name}.{old} {name}.{new}")
            return
    yield shell(loop)


# -- repair: a config so that a check passes ------------------------------------------------------------------

SETTINGS = {"mode": ("fast", "slow", "safe"), "level": ("low", "high", "mid"), "color": ("red", "blue", "green")}


def make_repair(rng: random.Random) -> Instance:
    """Repair a setting; the check says which."""
    wanted = {key: rng.choice(values) for key, values in SETTINGS.items()}
    key = rng.choice(list(SETTINGS))
    wrong = rng.choice([v for v in SETTINGS[key] if v != wanted[key]])
    path = rng.choice(["app.conf", "web.conf", "db.conf"])
    conf = "".join(f"{k}={wrong if k == key else v}\n" for k, v in wanted.items())
    check = "".join(f"grep -qx {k}={v} {path} || {{ echo {k} must be {v}; exit 1; }}\n" for k, v in wanted.items())
    text = rng.choice(["Repair {p} so that check.sh passes.", "Mend {p}: check.sh must pass."]).format(p=path)
    test = " && ".join(f"grep -qx {k}={v} {path}" for k, v in wanted.items()) + f' && [ "$(wc -l < {path})" = 3 ]'
    return Instance(text, {path: conf, "check.sh": check + "echo ok\n"}, test, {"path": path})


def show_repair(f: Facts, rng: random.Random, turn: Turn) -> Demonstration:
    """Run the check, mend what it names; a mistake sets another value."""
    path = f["path"]
    if turn == "error":
        yield shell("check.sh")
    if turn == "detour":
        yield look(rng, path)
    said = yield shell("sh check.sh")
    parts = said.split()
    if len(parts) < 4:
        return
    key, value = parts[0], parts[3]
    if turn == "mistake":
        value = rng.choice([v for v in SETTINGS[key] if v != value])
    yield shell(f"sed -i s/{key}=.*/{key}={value}/ {path}")
    if rng.random() < 0.3:
        yield shell("sh check.sh")


# -- follow: a pointer from file to file ----------------------------------------------------------------------


def make_follow(rng: random.Random) -> Instance:
    """Follow a chain of names to a word."""
    hops = rng.randint(1, 2)
    *names, word = words(rng, hops + 2)
    paths = [f"{n}.txt" for n in names]
    files = {p: f"next {q}\n" for p, q in zip(paths, paths[1:], strict=False)} | {paths[-1]: f"word {word}\n"}
    out = _output(rng)
    text = rng.choice(["Start at {p} and follow the files. Write the word to {o}.", "Follow the files from {p} on to a word. Write it to {o}."])
    return Instance(text.format(p=paths[0], o=out), files, holds(out, word), {"path": paths[0], "out": out})


def show_follow(f: Facts, rng: random.Random, turn: Turn) -> Demonstration:
    """Read on until there is a word; a mistake stops at the first name."""
    path = f["path"]
    if turn == "error":
        yield look(rng, path.removesuffix(".txt"))
    if turn == "detour":
        yield shell("ls")
    for _ in range(4):
        said = (yield look(rng, path)).split()
        if len(said) != 2:
            return
        if said[0] == "word" or turn == "mistake":
            yield put(rng, said[1], f["out"])
            return
        path = said[1]


# -- largest: number of a file --------------------------------------------------------------------------------


def make_largest(rng: random.Random) -> Instance:
    """The largest number of a file."""
    numbers = rng.sample(range(10, 100), rng.randint(2, 4)) + [rng.randint(100, 120), rng.randint(2, 9)]
    rng.shuffle(numbers)
    path, out = f"{words(rng, 1)[0]}.txt", _output(rng)
    text = rng.choice(["Write the largest number of {p} to {o}.", "Find the largest number in {p}. Write it to {o}."])
    return Instance(text.format(p=path, o=out), {path: "".join(f"{n}\n" for n in numbers)}, holds(out, str(max(numbers))), {"path": path, "out": out})


def show_largest(f: Facts, rng: random.Random, turn: Turn) -> Demonstration:
    """sort -n; a mistake sorts as text, or takes the smallest."""
    path, out = f["path"], f["out"]
    if turn == "error":
        yield shell(f"sort -n {path.removesuffix('.txt')}")
    if turn == "detour":
        yield look(rng, path)
    if turn == "mistake":
        yield shell(rng.choice([f"sort {path} | tail -n1 > {out}", f"sort -n {path} | head -n1 > {out}", f"sort -n {path} > {out}"]))
    elif rng.random() < 0.7:
        yield shell(rng.choice([f"sort -n {path} | tail -n1 > {out}", f"sort -nr {path} | head -n1 > {out}"]))
    else:
        answer = yield shell(f"sort -n {path}")
        yield put(rng, answer.split("\n")[-1], out)


# -- decode: a string -----------------------------------------------------------------------------------------

DECODERS = {"rev": "rev {p} > {o}", "b64": "base64 -d {p} > {o}", "up": "tr A-Z a-z < {p} > {o}"}


def _encode(kind: str, word: str) -> str:
    if kind == "rev":
        return word[::-1]
    return base64.b64encode(word.encode()).decode() if kind == "b64" else word.upper()


def make_decode(rng: random.Random) -> Instance:
    """Decode a word; the file's ending says how it was encoded."""
    word, name = words(rng, 2)
    kind = rng.choice(list(DECODERS))
    path, out = f"{name}.{kind}", _output(rng)
    text = rng.choice(["Decode {p} into {o}.", "The word in {p} is encoded. Write it plain to {o}."])
    return Instance(text.format(p=path, o=out), {path: _encode(kind, word) + "\n"}, holds(out, word), {"path": path, "out": out})


def show_decode(f: Facts, rng: random.Random, turn: Turn) -> Demonstration:
    """The decoder that the ending names; a mistake takes another, or copies."""
    path, out = f["path"], f["out"]
    kind = path.rpartition(".")[2]
    if turn == "error":
        yield shell(f"base64 -d {path.removesuffix('.' + kind)}")
    if turn == "detour":
        yield look(rng, path)
    commands = {k: v.format(p=path, o=out) for k, v in DECODERS.items()}
    if turn == "mistake":
        wrong = [c for k, c in commands.items() if k != kind]
        yield shell(rng.choice([*wrong, f"cat {path} > {out}"]))
        return
    yield shell(commands[kind])


FAMILIES = {
    family.name: family
    for family in (
        Family("write", make_write, show_write),
        Family("count", make_count, show_count),
        Family("find", make_find, show_find),
        Family("rename", make_rename, show_rename),
        Family("repair", make_repair, show_repair),
        Family("follow", make_follow, show_follow),
        Family("largest", make_largest, show_largest),
        Family("decode", make_decode, show_decode),
    )
}
