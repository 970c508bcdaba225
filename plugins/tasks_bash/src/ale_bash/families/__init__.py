"""The families, a file each, each with real shell semantics.

`FAMILIES` are eight kinds of small tasks of one to five turns, and the default; tasks of `LONG_FAMILIES` take more
turns and have crucial forks.
"""

from __future__ import annotations

from ale_bash.families.count_lines import COUNT
from ale_bash.families.decode_word import DECODE
from ale_bash.families.find_file import FIND
from ale_bash.families.follow_files import FOLLOW
from ale_bash.families.largest_number import LARGEST
from ale_bash.families.rename_files import RENAME
from ale_bash.families.repair_config import REPAIR
from ale_bash.families.turn_dials import DIALS
from ale_bash.families.write_word import WRITE
from ale_bash.family import Family, LongFamily

FAMILIES: dict[str, Family] = {
    family.name: family for family in (WRITE, COUNT, FIND, RENAME, REPAIR, FOLLOW, LARGEST, DECODE)
}
LONG_FAMILIES: dict[str, LongFamily] = {family.name: family for family in (DIALS,)}
