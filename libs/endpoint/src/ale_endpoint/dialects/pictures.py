"""Pictures and other attachments in requests: the parts of each API that hold one, and the messages that keep them.

What a session records is text, so a run refuses attachments, or leaves them out with a mark in their place. An upstream
may take them: there they are passed on, as chat completions have them. Messages and tools also keep what only an
upstream reads (the name of a speaker, `strict`); `settle` takes that out for a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, InstanceOf

from ale.messages import Message, ModelCall, ToolSpec
from ale_endpoint.dialects.fields import Server

LEFT_OUT = "[picture left out]"
Pictures = Literal["refuse", "leave_out", "pass_on"]
"""What is done with the pictures of a request."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture: its URL, which may hold all of it (`data:`), and how closely it is to be looked at."""

    url: str
    detail: str | None = None
    kind = "picture"

    def to_openai(self) -> dict[str, Any]:
        """Return the part of a chat-completions message."""
        return {"type": "image_url", "image_url": {"url": self.url, **({"detail": self.detail} if self.detail else {})}}


@dataclass(frozen=True, slots=True)
class Document:
    """A file, such as a PDF: all of it as a URL (`data:`), or where it is."""

    url: str | None = None
    name: str | None = None
    file_id: str | None = None
    kind = "document"

    def to_openai(self) -> dict[str, Any]:
        """Return the part of a chat-completions message, which has no files at URLs."""
        found = {"filename": self.name, "file_data": self.url, "file_id": self.file_id}
        return {"type": "file", "file": {key: value for key, value in found.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class Sound:
    """A recording of a voice, in base64."""

    data: str
    format: str
    kind = "sound"

    def to_openai(self) -> dict[str, Any]:
        """Return the part of a chat-completions message."""
        return {"type": "input_audio", "input_audio": {"data": self.data, "format": self.format}}


Attachment = Picture | Document | Sound


@dataclass(frozen=True, slots=True)
class RichMessage(Message):
    """A message with attachments, or with what only an upstream reads; its `content` has a mark in the place of each
    attachment."""

    parts: tuple[str | Attachment, ...] = ()
    """Texts and attachments; empty if there is only text."""
    more: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Other fields of the chat-completions message."""

    def to_openai(self) -> dict[str, Any]:
        """Return this message as a chat-completions object with all that it holds."""
        parts = [{"type": "text", "text": part} if isinstance(part, str) else part.to_openai() for part in self.parts]
        return {**Message.to_openai(self), **({"content": parts} if parts else {}), **self.more}

    def without(self) -> Message:
        """Return the message with marks in the place of its attachments."""
        return Message(self.role, self.content, self.tool_calls, self.tool_call_id, self.reasoning)


@dataclass(frozen=True, slots=True)
class StrictTool(ToolSpec):
    """A tool whose calls an upstream makes by its schema (`strict: true`), or need not (`false`)."""

    strict: bool = True

    def to_openai(self) -> dict[str, Any]:
        """Return this tool as chat completions have it."""
        made = ToolSpec.to_openai(self)
        return {**made, "function": {**made["function"], "strict": self.strict}}


def left_out(attachment: Attachment) -> str:
    """Return the mark for an attachment that is left out."""
    return f"[{attachment.kind} left out]"


def with_parts(message: Message, parts: Sequence[str | Attachment]) -> Message:
    """Return a message with this content."""
    content = "".join(part if isinstance(part, str) else left_out(part) for part in parts)
    if all(isinstance(part, str) for part in parts):
        return replace(message, content=content)
    return RichMessage(
        message.role,
        content,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning,
        parts=tuple(part for part in parts if part),
    )


def with_more(message: Message, more: Mapping[str, Any]) -> Message:
    """Return a message with other fields for an upstream."""
    if not more:
        return message
    parts = message.parts if isinstance(message, RichMessage) else ()
    same = (message.role, message.content, message.tool_calls, message.tool_call_id, message.reasoning)
    return RichMessage(*same, parts=parts, more=more)


def leave_pictures_out(call: ModelCall) -> ModelCall:
    """Return a call with marks in the place of its attachments."""
    return replace(call, messages=tuple(_without_parts(message) for message in call.messages))


def _without_parts(message: Message) -> Message:
    if not isinstance(message, RichMessage):
        return message
    return replace(message, parts=()) if message.more else message.without()


def settle(call: ModelCall, pictures: Pictures, server: Server) -> ModelCall:
    """Return a call for this server: with its attachments, or with marks in their place; a session gets plain messages
    and tools. Raises `ValueError` if attachments are refused."""
    attached = ((m, part) for m in call.messages if isinstance(m, RichMessage) for part in m.parts)
    found = next(((m, part) for m, part in attached if not isinstance(part, str)), None)
    if found is not None and pictures == "refuse":
        message, part = found
        assert not isinstance(part, str)
        raise ValueError(
            f"a message of the role {message.role} holds a {part.kind}, and only text is supported; the setting "
            f"scaffold.pictures (leave_out) puts {left_out(part)!r} in its place"
        )
    if found is not None and pictures == "leave_out":
        call = leave_pictures_out(call)
    if server == "upstream":
        return call
    if any(isinstance(message, RichMessage) for message in call.messages):
        call = replace(call, messages=tuple(m.without() if isinstance(m, RichMessage) else m for m in call.messages))
    if any(isinstance(tool, StrictTool) for tool in call.tools):
        call = replace(call, tools=tuple(ToolSpec(t.name, t.description, t.parameters) for t in call.tools))
    return call


class AttachmentPart(BaseModel):
    """A part of a content that is no text."""

    model_config = ConfigDict(strict=True)

    def to_parts(self) -> list[str | Attachment]:
        """The attachment, as a part of a content."""
        return [self.to_attachment()]

    def to_attachment(self) -> Attachment:
        """The attachment."""
        raise NotImplementedError


class ImageUrl(BaseModel):
    """Where a picture is."""

    model_config = ConfigDict(strict=True)
    url: InstanceOf[str]
    detail: InstanceOf[str] | None = None


class ImagePart(AttachmentPart):
    """A picture in chat completions."""

    type: Literal["image_url"]
    image_url: ImageUrl

    def to_attachment(self) -> Picture:
        """The picture."""
        return Picture(self.image_url.url, self.image_url.detail)


class InputAudio(BaseModel):
    """The data of a recording."""

    model_config = ConfigDict(strict=True)
    data: InstanceOf[str]
    format: InstanceOf[str]


class AudioPart(AttachmentPart):
    """A recording of a voice in chat completions."""

    type: Literal["input_audio"]
    input_audio: InputAudio

    def to_attachment(self) -> Sound:
        """The recording."""
        return Sound(self.input_audio.data, self.input_audio.format)


class FileData(BaseModel):
    """A file, or its name at the server."""

    model_config = ConfigDict(strict=True)
    file_data: InstanceOf[str] | None = None
    file_id: InstanceOf[str] | None = None
    filename: InstanceOf[str] | None = None


class FilePart(AttachmentPart):
    """A file in chat completions."""

    type: Literal["file"]
    file: FileData

    def to_attachment(self) -> Document:
        """The file."""
        return Document(self.file.file_data, self.file.filename, self.file.file_id)


class InputImage(AttachmentPart):
    """A picture in Responses."""

    type: Literal["input_image"]
    image_url: InstanceOf[str]
    detail: InstanceOf[str] | None = None

    def to_attachment(self) -> Picture:
        """The picture."""
        return Picture(self.image_url, self.detail)


class InputFile(FileData, AttachmentPart):
    """A file in Responses."""

    type: Literal["input_file"]
    file_url: InstanceOf[str] | None = None

    def to_attachment(self) -> Document:
        """The file."""
        return Document(self.file_data or self.file_url, self.filename, self.file_id)


class ImageSource(BaseModel):
    """A picture in Anthropic messages: its URL, or all of it in base64."""

    model_config = ConfigDict(strict=True)
    type: Literal["base64", "url"]
    url: InstanceOf[str] | None = None
    media_type: InstanceOf[str] = "image/png"
    data: InstanceOf[str] = ""


class ImageBlock(AttachmentPart):
    """A picture in Anthropic messages."""

    type: Literal["image"]
    source: ImageSource

    def to_attachment(self) -> Picture:
        """The picture."""
        source = self.source
        return Picture(source.url or f"data:{source.media_type};base64,{source.data}")


AnyAttachment = ImagePart | AudioPart | FilePart | InputImage | InputFile | ImageBlock
