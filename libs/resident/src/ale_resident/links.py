"""Whether the symbolic links of a tree stay inside it, also those that lead through one another."""

from __future__ import annotations

from collections.abc import Mapping

from ale_resident.inside.packing import MAX_DEPTH, Refused, quoted

MAX_HOPS = 40
"""What the kernel follows, too."""
MAX_STEPS = 5_000_000
"""A tree whose links take longer to look at is refused: some seconds."""


def check_links(links: Mapping[bytes, bytes]) -> None:
    """Refuse (`Refused`) a tree one of whose links, name -> target, leads out of it, or in a circle. May block for seconds."""
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
            where = quoted(links[name][:80])
            raise Refused(f"the link {quoted(name)} leads out of the tree or in a circle (to {where})")
        if steps > MAX_STEPS:
            raise Refused("the tree's links lead through one another too often")
