"""The families: eight kinds of small shell tasks of one to five turns, a file each, each with real shell semantics."""

from __future__ import annotations

from ale_bash.families.count import COUNT
from ale_bash.families.decode import DECODE
from ale_bash.families.find import FIND
from ale_bash.families.follow import FOLLOW
from ale_bash.families.largest import LARGEST
from ale_bash.families.rename import RENAME
from ale_bash.families.repair import REPAIR
from ale_bash.families.write import WRITE

FAMILIES = {family.name: family for family in (WRITE, COUNT, FIND, RENAME, REPAIR, FOLLOW, LARGEST, DECODE)}
