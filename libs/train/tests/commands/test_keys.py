"""How keys are described."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from ale.config.keys import describe_keys

Word = Annotated[str, BeforeValidator(str)]


class Inner(BaseModel):
    depth: int = Field(1, description="How deep.")


class Model(BaseModel):
    words: tuple[Word, ...] = Field((), description="Some words.")
    mode: Annotated[Literal["a", "b"] | None, BeforeValidator(lambda value: value)] = Field(None, description="Which.")
    inner: Inner = Field(Inner(), description="A section.")
    must: float = Field(description="Needed.")


def test_types_are_named_as_a_user_writes_them() -> None:
    assert describe_keys(Model) == [
        ("words", "tuple[str, ...]", "()", "Some words."),
        ("mode", "a | b | null", "null", "Which."),
        ("inner.depth", "int", "1", "How deep."),
        ("must", "float", "required", "Needed."),
    ]
