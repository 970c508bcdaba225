"""One episode's line to the model, and the endpoint that opens them.

A call goes: prompt tokens from the recorder -> a responder's reply, if the episode has one, else the upstream's, if the
run has one, else the engine -> tool calls read from the text -> recorded -> answered. Sampling parameters are the session's, whatever the agent asks
for. Cancelling a call cancels the generation and records nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ale.endpoint.dialects import ModelCall
from ale.endpoint.dialects.dialect import MODEL
from ale.endpoint.recorder import Prompt, Recorder
from ale.endpoint.tokenizer import ChatTokenizer
from ale.endpoint.tool_format import ParsedReply, parse_reply, render_reply
from ale.errors import BudgetExceeded, ConfigError
from ale.hooks import Hooks
from ale.messages import ChatReply, ChunkErrorKind, FinishWord, Message, ToolSpec
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, Sampling
from ale.specs.scaffold import ModelSession, Responder
from ale.trajectory import ChunkError, Observation

if TYPE_CHECKING:
    from ale.endpoint.recording import Source


class EndpointSession(ModelSession):
    """A `ModelSession` over a tokenizer and an engine."""

    def __init__(
        self,
        endpoint: ModelEndpoint,
        session_id: str,
        sampling: Sampling,
        *,
        max_calls: int,
        max_context: int,
        max_sampled_tokens: int | None,
        responder: Responder | None,
    ) -> None:
        self.id = session_id
        self.recorder = Recorder(endpoint.tokenizer)
        self.observations: list[Observation] = []
        self.calls = 0
        self.model_seconds = 0.0
        self._endpoint = endpoint
        self._sampling = sampling
        self._max_calls = max_calls
        self._max_context = max_context
        self._left = max_sampled_tokens
        """How many more tokens may be sampled; None: any number."""
        self._responder = responder
        self._key = secrets.token_urlsafe(24)

    @property
    def base_url(self) -> str:
        """OpenAI-compatible base URL (ends in `/v1`)."""
        if self._endpoint.base_url is None:
            raise ConfigError(
                "This run serves no HTTP; set endpoint.http=true for scaffolds in processes of their own."
            )
        return self._endpoint.base_url

    @property
    def api_key(self) -> str:
        """The key that makes an HTTP call one of this session."""
        return self._key

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> ChatReply:
        """One model call; see `ModelSession.chat`."""
        return (await self.answer(ModelCall(tuple(messages), tuple(tools))))[0]

    async def answer(self, request: ModelCall) -> list[ChatReply]:
        """One model call of any API: as many replies as were asked for, each of which counts as a call.

        Temperature and its like are the session's, whatever the agent asks for; so is the longest answer, but for an agent
        that asks for a shorter one. Raises as `chat` does.
        """
        if self.calls + request.n > self._max_calls:
            raise BudgetExceeded(f"The episode has used its {self._max_calls} model calls.")
        first, self.calls = self.calls, self.calls + request.n
        prompt = self.recorder.prompt(request.messages, request.tools)
        if request.n == 1:
            return [await self._reply(request, prompt, first)]
        try:
            async with asyncio.TaskGroup() as group:
                made = [group.create_task(self._reply(request, prompt, first + i)) for i in range(request.n)]
        except ExceptionGroup as several:  # of one call, whose fault is the first one's
            raise several.exceptions[0] from None
        return [task.result() for task in made]

    def count_tokens(self, request: ModelCall) -> int:
        """How many tokens the prompt of a request has; nothing is recorded."""
        return len(self.recorder.prompt(request.messages, request.tools).token_ids)

    async def _reply(self, request: ModelCall, prompt: Prompt, call: int) -> ChatReply:
        given = await self._responder(request.messages, request.tools) if self._responder is not None else None
        if given is not None:
            chunk = self.recorder.add_given(prompt, render_reply(given), given)
            self._endpoint.hooks.call("ale_model_called", session_id=self.id, chunk=chunk, message=given)
            given_finish: FinishWord = "tool_calls" if given.tool_calls else "stop"
            return ChatReply(given, given_finish, chunk.index, len(prompt.token_ids), len(chunk))
        if self._endpoint.upstream is not None:
            return await self._forwarded(self._endpoint.upstream, request, prompt)
        room = min(self._max_context, self._endpoint.engine.max_context) - len(prompt.token_ids)
        if room < 1:
            raise BudgetExceeded(
                f"The context of {len(prompt.token_ids)} tokens leaves no room for an answer within "
                f"{min(self._max_context, self._endpoint.engine.max_context)} tokens."
            )
        longest = min(self._sampling.max_tokens, request.max_tokens or room, room)
        if self._left is not None:
            if self._left < 1:
                raise BudgetExceeded("The episode has sampled all the tokens that it may (rollout.max_sampled_tokens).")
            longest = min(longest, self._left)
        sampling = self._sampling_of(call, longest)
        generation = await self._endpoint.engine.generate(
            GenerateRequest(prompt.token_ids, sampling, session=self.id, call=call)
        )
        if self._left is not None:
            self._left -= len(generation.token_ids)
        generation, text, stop = self._cut(generation, request.stop)
        sampled = generation.token_ids
        stopped = bool(sampled) and sampled[-1] in self._endpoint.tokenizer.stop_token_ids
        parsed = (
            ParsedReply(Message("assistant", text))
            if request.tool_choice == "none"
            else parse_reply(text, f"call_{call}")
        )
        error = ChunkError("illegal_call", parsed.illegal) if parsed.illegal else None
        if error is None and not stopped and stop is None:
            error = ChunkError("truncated", "The response was cut at its token limit.")
        chunk = self.recorder.add_sampled(prompt, generation, parsed.message, error)
        self._endpoint.hooks.call("ale_model_called", session_id=self.id, chunk=chunk, message=parsed.message)
        ended: FinishWord = "stop" if stopped or stop is not None else "length"
        finish: FinishWord = "tool_calls" if parsed.message.tool_calls else ended
        decode = self._endpoint.tokenizer.decode
        tokens = (
            tuple((decode([t]), p) for t, p in zip(sampled, generation.logprobs, strict=False))
            if request.logprobs
            else ()
        )
        return ChatReply(
            parsed.message, finish, chunk.index, len(prompt.token_ids), len(sampled), parsed.illegal, stop, tokens
        )

    async def _forwarded(self, upstream: Source, request: ModelCall, prompt: Prompt) -> ChatReply:
        """The reply of another server's model: recorded like a demonstrator's."""
        asked = replace(request, n=1, logprobs=False, ignored={})
        (reply,) = (await upstream.answer(asked)).replies
        chunk = self.recorder.add_given(prompt, render_reply(reply.message), reply.message, given_error(reply))
        self._endpoint.hooks.call("ale_model_called", session_id=self.id, chunk=chunk, message=reply.message)
        return replace(reply, chunk=chunk.index)

    def _cut(self, generation: Generation, stops: tuple[str, ...]) -> tuple[Generation, str, str | None]:
        """What was sampled up to the first stop text, the text before that, and which one it was.

        The tokens that hold the stop text are kept, since the policy sampled them; those after them are nobody's.
        """
        tokenizer = self._endpoint.tokenizer
        sampled = generation.token_ids
        spoken = sampled[:-1] if sampled and sampled[-1] in tokenizer.stop_token_ids else sampled
        text = tokenizer.decode(spoken)
        found = sorted((text.find(stop), stop) for stop in stops if stop in text)
        if not found:
            return generation, text, None
        at, stop = found[0]
        end = next(n for n in range(1, len(spoken) + 1) if len(tokenizer.decode(spoken[:n])) >= at + len(stop))
        cut = replace(
            generation, token_ids=sampled[:end], logprobs=generation.logprobs[:end], versions=generation.versions[:end],
            finish_reason="stop",
        )  # fmt: skip
        return cut, text[:at], stop

    def _sampling_of(self, call: int, max_tokens: int) -> Sampling:
        s = self._sampling
        # Every call of a session has noise of its own, and the same one when the run is repeated.
        seed = None if s.seed is None else (s.seed * 1_000_003 + call) % (1 << 62)
        stops = s.stop_token_ids or self._endpoint.tokenizer.stop_token_ids
        return Sampling(s.temperature, s.top_p, s.top_k, max_tokens, stops, seed)

    def mark_error(self, chunk: int, kind: ChunkErrorKind, message: str) -> None:
        """Record that the chunk's call was illegal or failed."""
        self.recorder.mark_error(chunk, ChunkError(kind, message))

    def observe(
        self, chunk: int, tool: str, arguments: Mapping[str, Any], text: str, exit_code: int | None, seconds: float
    ) -> None:
        """Record what the environment answered."""
        self.observations.append(Observation(chunk, tool, dict(arguments), text, exit_code, seconds))


class ModelEndpoint:
    """Opens sessions over one tokenizer and one engine; both may be replaced between stages."""

    models = (MODEL,)

    def __init__(self, tokenizer: ChatTokenizer, engine: InferenceEngine, hooks: Hooks) -> None:
        self.tokenizer = tokenizer
        self.engine = engine
        self.hooks = hooks
        self.base_url: str | None = None
        """With the API's path; None where nothing is served."""
        self.upstream: Source | None = None
        """What answers in the engine's place."""
        self._sessions: dict[bytes, EndpointSession] = {}
        """By the hashes of their keys: how long a search takes tells nothing of a key."""

    def open(
        self,
        session_id: str,
        sampling: Sampling,
        *,
        max_calls: int,
        max_context: int,
        max_sampled_tokens: int | None = None,
        responder: Responder | None = None,
    ) -> EndpointSession:
        """Open the session of one episode; close it with `close`."""
        session = EndpointSession(
            self,
            session_id,
            sampling,
            max_calls=max_calls,
            max_context=max_context,
            max_sampled_tokens=max_sampled_tokens,
            responder=responder,
        )
        self._sessions[_hashed(session.api_key)] = session
        return session

    @property
    def origin(self) -> str | None:
        """Where it is served, without the API's path."""
        return None if self.base_url is None else self.base_url.removesuffix("/v1")

    def close(self, session: EndpointSession) -> None:
        """Forget the session: its key is worth nothing from now on."""
        self._sessions.pop(_hashed(session.api_key), None)

    def by_key(self, key: str) -> EndpointSession | None:
        """The open session that this key belongs to."""
        return self._sessions.get(_hashed(key))


def given_error(reply: ChatReply) -> ChunkError | None:
    """Why a reply that the policy did not sample is an error turn."""
    if reply.illegal is not None:
        return ChunkError("illegal_call", reply.illegal)
    if reply.finish_reason == "length":
        return ChunkError("truncated", "The response was cut at its token limit.")
    return None


def _hashed(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
