"""Lines for a terminal or a pipe: coloured and in a pager at a terminal, else plain and as long as they are.

What a policy or a tool wrote may hold anything. `printable` shows control characters instead of sending them, and no
text is read as markup: a `Text` of rich holds it as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

HEAD_CHARS, TAIL_CHARS = 4000, 1500
"""How much of a long text is shown, unless all of it was asked for."""
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
_SPELLED = (*range(0x80, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000))
_VISIBLE: dict[int, int | str] = {**_PICTURES, **{code: f"[U+{code:04X}]" for code in _SPELLED}}

Part = tuple[str, str]
"""A text and its style."""


@dataclass(frozen=True, slots=True)
class Line:
    """Some texts with their styles, `indent` columns from the left; `cut` if a terminal shows one row of it."""

    parts: tuple[Part, ...] = ()
    indent: int = 0
    cut: bool = False

    @property
    def plain(self) -> str:
        """The line without styles; each of its own lines is indented."""
        text = "".join(text for text, _ in self.parts)
        return "\n".join(f"{' ' * self.indent}{line}".rstrip() for line in text.split("\n"))


@dataclass
class Table:
    """Rows of cells with their styles; columns are as wide as what they hold, also where letters are wide."""

    heads: Sequence[str]
    rows: list[tuple[Sequence[Part], Part]] = field(default_factory=list)
    """The cells of each row, and a note below it, which may be empty."""

    def add(self, *cells: Part, note: Part = ("", "")) -> None:
        """Add a row."""
        self.rows.append((cells, note))

    def lines(self, indent: int = 0) -> Iterator[Line]:
        """Yield the heads, the rows and their notes."""
        heads = [(head, "bold") for head in self.heads]
        rows: list[tuple[Sequence[Part], Part]] = [(heads, ("", "")), *self.rows]
        widths = [max(cell_len(cells[i][0]) for cells, _ in rows) for i in range(len(self.heads))]
        for cells, note in rows:
            gaps = (" " * (width - cell_len(text) + 2) for (text, _), width in zip(cells, widths, strict=True))
            yield Line(
                tuple((text + gap, style) for (text, style), gap in zip(cells, gaps, strict=True)), indent, cut=True
            )
            if note[0]:
                yield Line((note,), indent + 2)


def line(text: str, style: str = "", indent: int = 0) -> Line:
    """Return a line of one style."""
    return Line(((text, style),), indent)


def printable(text: str) -> str:
    """Return a text with control characters, lone surrogates and changes of direction shown instead of obeyed."""
    return text.replace("\r\n", "\n").translate(_VISIBLE)


def one_line(text: str) -> str:
    """Return a text on one line."""
    return printable(" ".join(text.split()))


def shorten(text: str, full: bool = False) -> str:
    """Return a text that can be shown; a long one loses its middle, unless all of it was asked for."""
    left_out = len(text) - HEAD_CHARS - TAIL_CHARS
    if left_out > 0 and not full:
        note = f"[... {left_out:,} characters left out; --full shows them ...]"
        text = f"{text[:HEAD_CHARS]}\n{note}\n{text[-TAIL_CHARS:]}"
    return printable(text).rstrip("\n")


def show_lines(lines: Iterable[Line]) -> None:
    """Print the lines: in a pager and with colours at a terminal, else plain, each as long as it is."""
    if not sys.stdout.isatty():
        for each in lines:
            print(each.plain)
        return
    os.environ.setdefault("LESS", "-FRX")  # `less` shows colours, and does nothing where all fits on the screen
    console = Console(highlight=False)
    with console.pager(styles=True):
        for each in lines:
            text = Text.assemble(*each.parts)
            wrap = {"no_wrap": True, "overflow": "ellipsis"} if each.cut else {"no_wrap": False, "overflow": "fold"}
            text.no_wrap, text.overflow = wrap["no_wrap"], wrap["overflow"]  # type: ignore[assignment]
            console.print(Padding(text, (0, 0, 0, each.indent), expand=False) if each.indent else text)
