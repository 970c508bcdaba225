"""Writes the contracts into the plugin author's pages as plain Markdown, to be read without building a site.

A page has marked places. `<!-- contract: ale.specs.reward -->` to `<!-- end -->` holds the public classes, fields,
methods and functions of the module with their docstrings; `<!-- kit: test_reward -->` the rules that a suite of the
conformance kit tests. `.venv/bin/python tests/contract_text.py` writes them anew; `docs/test_contract_pages.py`
compares them with the code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

PAGES = Path(__file__).parents[1] / "docs" / "plugins"
PLACE = re.compile(r"<!-- (contract|kit): ([\w.]+) -->\n(.*?)<!-- end -->", re.DOTALL)
LONGEST_VALUE = 120
"""Characters of a constant that is shown with its value."""
CALLED_BY_PYDANTIC = ("field_validator", "model_validator", "field_serializer")


def filled(page: str) -> str:
    """A page whose marked places say what the code says."""
    write = {"contract": describe_module, "kit": describe_suite}
    return PLACE.sub(lambda m: f"<!-- {m[1]}: {m[2]} -->\n{write[m[1]](m[2])}\n<!-- end -->", page)


def describe_module(name: str) -> str:
    """The public contents of a module; a package shows what it exports."""
    module = importlib.import_module(name)
    tree = ast.parse(inspect.getsource(module))
    parts = [ast.get_docstring(tree) or ""]
    for exported in getattr(module, "__all__", ()):
        item = getattr(module, exported)
        node = ast.parse(textwrap.dedent(inspect.getsource(item))).body[0]
        parts += describe_item(node, item)
    for node, following in pairs(tree.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            parts += describe_item(node, getattr(module, node.name))
        elif docstring(following) and (assigned := assigned_name(node)):
            value = ast.unparse(node.value) if isinstance(node, ast.Assign) else ""
            shown = f" = {value}" if 0 < len(value) <= LONGEST_VALUE else ""
            parts.append(f"**`{assigned}{shown}`**: {docstring(following)}")
    return "\n\n".join(parts) + "\n"


def describe_item(node: ast.stmt, item: object) -> Iterator[str]:
    """A class or a function, unless it is private."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
        yield f"**`{signature(node)}`**: {paragraphs(ast.get_docstring(node))}"
    if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
        return
    bases = ", ".join(name for base in node.bases if (name := ast.unparse(base)) not in ("ABC", "Protocol"))
    yield f"### {node.name}"
    yield f"{f'`class {node.name}({bases})`. ' if bases else ''}{ast.get_docstring(node) or ''}"
    lines = []
    for child, following in pairs(node.body):
        if isinstance(child, ast.AnnAssign) and (name := assigned_name(child)):
            lines.append(field_line(name, child, following, item))
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and is_public_method(child):
            is_yours = any("abstractmethod" in ast.unparse(decorator) for decorator in child.decorator_list)
            says = paragraphs(ast.get_docstring(child), 2)
            lines.append(f"- `{signature(child)}`{' (abstract)' if is_yours else ''}: {says}".rstrip(": "))
    if lines:
        yield "\n".join(lines)


def field_line(name: str, node: ast.AnnAssign, following: ast.stmt | None, item: object) -> str:
    """A field with its type, its default, and what it means."""
    described = getattr(item, "model_fields", {}).get(name)
    said = docstring(following) or (described.description if described is not None else None) or ""
    default = "" if node.value is None else f" = {short_default(node.value)}"
    return f"- `{name}: {ast.unparse(node.annotation)}{default}`{': ' + one_line(said) if said else ''}"


def short_default(value: ast.expr) -> str:
    """A default; that of pydantic's or a dataclass's `Field(...)`, without the rest."""
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("Field", "field"):
        named = {keyword.arg: keyword.value for keyword in value.keywords}
        factory = named.get("default_factory")
        if factory is not None:
            return f"{ast.unparse(factory)}()"
        return ast.unparse(value.args[0]) if value.args else ast.unparse(named.get("default", ast.Constant(...)))
    return ast.unparse(value)


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A method as it is called, without `self`; a property as the value that it is."""
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    words = {ast.unparse(decorator) for decorator in node.decorator_list}
    if "property" in words:
        return f"{node.name}{result.replace(' -> ', ': ')} (property)"
    arguments = node.args
    for group in (arguments.posonlyargs, arguments.args):
        group[:] = [argument for argument in group if argument.arg not in ("self", "cls")]
    start = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    start = f"classmethod {start}" if "classmethod" in words else start
    return f"{start}{node.name}({ast.unparse(arguments)}){result}"


def is_public_method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a plugin calls or writes it; what pydantic calls is no part of a contract."""
    by_pydantic = any(word in ast.unparse(d) for d in node.decorator_list for word in CALLED_BY_PYDANTIC)
    return not node.name.startswith("_") and not by_pydantic


def describe_suite(name: str) -> str:
    """The rules that a suite of the kit tests: the names of its tests, as sentences."""
    tree = ast.parse(inspect.getsource(importlib.import_module(f"ale_testing.{name}")))
    tests = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    rules = [test.removeprefix("test_").replace("_", " ") for test in tests if test.startswith("test_")]
    return "\n".join([ast.get_docstring(tree) or "", "", *(f"- {rule}" for rule in rules)]) + "\n"


def pairs(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.stmt | None]]:
    """Each statement with the next one, which may be its docstring."""
    yield from zip(body, [*body[1:], None], strict=True)


def docstring(node: ast.stmt | None) -> str:
    """The text of a statement that is nothing but a text."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return one_line(node.value.value)
    return ""


def assigned_name(node: ast.stmt) -> str:
    """The public name to which a statement assigns, if it is one."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = [target.id for target in targets if isinstance(target, ast.Name) and not target.id.startswith("_")]
    return ", ".join(name for name in names if name != "model_config")


def paragraphs(text: str | None, indent: int = 0) -> str:
    """A docstring, its later lines indented as those of a list's item are."""
    return textwrap.indent(text or "", " " * indent, lambda line: bool(line.strip())).strip()


def one_line(text: str) -> str:
    """A text with single spaces."""
    return " ".join(text.split())


if __name__ == "__main__":
    for file in sorted(PAGES.glob("*.md")):
        file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
