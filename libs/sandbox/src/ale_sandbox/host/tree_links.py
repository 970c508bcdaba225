"""Checks that the symbolic links of a tree stay inside it, even those that lead through other links."""

from __future__ import annotations

from collections.abc import Mapping

from ale_sandbox.resident.trees.tree_reader import MAX_DEPTH, InvalidTree, quote

MAX_HOPS = 40
"""As many links as the kernel follows."""
MAX_STEPS = 5_000_000
"""A tree whose links take more steps to check (some seconds) is refused."""


def check_links(links: Mapping[bytes, bytes]) -> None:
    """Check the links of a tree, name -> target. Raises `InvalidTree` if one leads out of the tree or in a circle. May
    block for seconds."""
    steps = 0
    for name in links:
        at, hops = name.split(b"/")[:-1], 1
        todo = links[name].split(b"/")[::-1]
        leads_out = links[name].startswith(b"/")
        while todo and not leads_out:
            steps += 1
            part = todo.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                leads_out = not at
                del at[-1:]
                continue
            at.append(part)
            target = links.get(b"/".join(at))
            if target is not None:
                hops += 1
                todo += target.split(b"/")[::-1]
                del at[-1:]
            leads_out = hops > MAX_HOPS or len(at) > MAX_DEPTH or (target or b"").startswith(b"/")
        if leads_out:
            where = quote(links[name][:80])
            raise InvalidTree(f"the link {quote(name)} leads out of the tree or in a circle (to {where})")
        if steps > MAX_STEPS:
            raise InvalidTree("the tree's links lead through one another too often")
