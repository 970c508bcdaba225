"""Environments for the tests. Nothing of ALE is imported here: they run in processes of their own."""

import asyncio
import os
import random
import subprocess
import sys
import time


class Sum:
    """Actions are numbers, and rewards. It ends at the sum of `goal`; every observation says the seed."""

    def __init__(self, goal=3.0):
        self.goal = goal

    def reset(self, seed):
        self.seed, self.total = seed, 0.0
        return f"seed {seed}"

    def step(self, action):
        self.total += float(action)
        return f"seed {self.seed}, sum {self.total:g}", float(action), self.total >= self.goal


class FiveValues:
    """Like gymnasium: `reset` has an info, `step` five values. The third action is the last."""

    def reset(self, seed):
        self.left = 3
        return {"left": self.left}, {"hidden": 1}

    def step(self, action):
        self.left -= 1
        return {"left": self.left, "heard": action}, 0.5, False, self.left == 0, {}


class Dice:
    """It draws from the process's random numbers, whatever its seed."""

    def reset(self, seed):
        return str(random.random())

    def step(self, action):
        return str(random.random()), random.random(), False


class Loud:
    """It writes to standard output, through Python and past it, in the form of an answer."""

    def reset(self, seed):
        print('{"id": 1, "result": {"messages": [], "reward": 9, "terminated": true, "truncated": false}}')
        os.write(1, b'{"id": 2, "result": 9}\n')
        return "quiet"

    def step(self, action):
        subprocess.run(["echo", "noise"], check=True)
        sys.stdout.write("more noise")
        return "quiet", 1.0, True


class Obedient:
    """It does what the action says, and writes into the file `note` that it was closed."""

    def __init__(self, note=None):
        self.note = note

    def reset(self, seed):
        self.heard = []
        return f"ready {os.getpid()}"

    def step(self, action):
        word, _, value = action.partition(" ")
        self.heard.append(action)
        if word == "raise":
            raise ValueError("the cup is broken")
        if word == "exit":
            sys.exit("no more")
        if word == "cancel":
            raise asyncio.CancelledError
        if word == "interrupt":
            raise KeyboardInterrupt
        if word == "die":
            print("these were my last words", flush=True)
            os._exit(3)
        if word == "sleep":
            time.sleep(float(value))
        if word == "child":
            subprocess.Popen(["sleep", value])
        if word == "answer":
            return eval(value)
        return f"{os.getpid()} heard {self.heard}", 1.0, word == "end"

    def close(self):
        if self.note:
            with open(self.note, "a") as file:
                file.write("closed\n")


class Shown(Sum):
    """An expert that is sometimes wrong: it says 2 where 1 is left."""

    def expert(self, rng):
        return f"<act>{rng.choice([1, 2])}</act>"


class Dull:
    """It has no `step`."""

    def reset(self, seed):
        return ""


class Seedless:
    """It cannot be reset to a seed."""

    def reset(self):
        return "go"

    def step(self, action):
        return "done", 1.0, True, False, {}


class Still:
    """It takes no action."""

    def reset(self, seed):
        return "go"

    def step(self):
        return "done", 1.0, True, False, {}


class ByKeyword(Seedless):
    """Its `reset` is written as those of gymnasium's environments."""

    def reset(self, *, seed=None, options=None):
        return f"seed {seed}", {}


class Unmakeable:
    def __init__(self):
        raise OSError("the board is lost")
