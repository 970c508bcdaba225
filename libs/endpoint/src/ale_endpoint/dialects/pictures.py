"""Pictures in requests: the parts of each API that hold one, and the messages that keep them.

What a session records is text, so a run refuses pictures, or leaves them out with a mark in their place. An upstream
may take them: there they are passed on, as chat completions have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, InstanceOf

from ale.messages import Message, ModelCall

LEFT_OUT = "[picture left out]"
Pictures = Literal["refuse", "leave_out", "pass_on"]
"""What is done with the pictures of a request."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture: its URL, which may hold all of it (`data:`), and how closely it is to be looked at."""

    url: str
    detail: str | None = None

    def to_openai(self) -> dict[str, Any]:
        """Return the part of a chat-completions message."""
        return {"type": "image_url", "image_url": {"url": self.url, **({"detail": self.detail} if self.detail else {})}}


@dataclass(frozen=True, slots=True)
class PicturedMessage(Message):
    """A message with pictures; its `content` has a mark in the place of each."""

    parts: tuple[str | Picture, ...] = ()

    def to_openai(self) -> dict[str, Any]:
        """Return this message as a chat-completions object with its pictures."""
        parts = [
            part.to_openai() if isinstance(part, Picture) else {"type": "text", "text": part} for part in self.parts
        ]
        return {**Message.to_openai(self), "content": parts}

    def without(self) -> Message:
        """Return the message with marks in the place of its pictures."""
        return Message(self.role, self.content, self.tool_calls, self.tool_call_id, self.reasoning)


def with_parts(message: Message, parts: Sequence[str | Picture]) -> Message:
    """Return a message with this content."""
    content = "".join(LEFT_OUT if isinstance(part, Picture) else part for part in parts)
    if not any(isinstance(part, Picture) for part in parts):
        return replace(message, content=content)
    return PicturedMessage(
        message.role,
        content,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning,
        parts=tuple(part for part in parts if part),
    )


def leave_pictures_out(call: ModelCall) -> ModelCall:
    """Return a call with marks in the place of its pictures."""
    messages = tuple(m.without() if isinstance(m, PicturedMessage) else m for m in call.messages)
    return replace(call, messages=messages)


def settle_pictures(call: ModelCall, pictures: Pictures) -> ModelCall:
    """Return a call with its pictures, or with marks in their place. Raises `ValueError` if they are refused."""
    if pictures == "pass_on" or not any(isinstance(message, PicturedMessage) for message in call.messages):
        return call
    if pictures == "refuse":
        role = next(message.role for message in call.messages if isinstance(message, PicturedMessage))
        raise ValueError(
            f"a message of the role {role} holds a picture, and only text is supported; the setting scaffold.pictures "
            f"(leave_out) puts {LEFT_OUT!r} in its place"
        )
    return leave_pictures_out(call)


class ImageUrl(BaseModel):
    """Where a picture is."""

    model_config = ConfigDict(strict=True)
    url: InstanceOf[str]
    detail: InstanceOf[str] | None = None


class ImagePart(BaseModel):
    """A picture in chat completions."""

    model_config = ConfigDict(strict=True)
    type: Literal["image_url"]
    image_url: ImageUrl

    def to_picture(self) -> Picture:
        """The picture."""
        return Picture(self.image_url.url, self.image_url.detail)


class InputImage(BaseModel):
    """A picture in Responses."""

    model_config = ConfigDict(strict=True)
    type: Literal["input_image"]
    image_url: InstanceOf[str]
    detail: InstanceOf[str] | None = None

    def to_picture(self) -> Picture:
        """The picture."""
        return Picture(self.image_url, self.detail)


class ImageSource(BaseModel):
    """A picture in Anthropic messages: its URL, or all of it in base64."""

    model_config = ConfigDict(strict=True)
    type: Literal["base64", "url"]
    url: InstanceOf[str] | None = None
    media_type: InstanceOf[str] = "image/png"
    data: InstanceOf[str] = ""


class ImageBlock(BaseModel):
    """A picture in Anthropic messages."""

    model_config = ConfigDict(strict=True)
    type: Literal["image"]
    source: ImageSource

    def to_picture(self) -> Picture:
        """The picture."""
        source = self.source
        return Picture(source.url or f"data:{source.media_type};base64,{source.data}")


AnyPicture = ImagePart | InputImage | ImageBlock
