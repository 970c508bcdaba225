"""One episode's line to the model, and the endpoint that opens them.

A call goes: prompt tokens from the recorder -> an expert's or a responder's reply, if the episode has one, else the upstream's, if
the run has one, else the engine -> thoughts and tool calls read from the text -> recorded -> answered. Sampling parameters are the session's, whatever the agent asks
for. Cancelling a call cancels the generation and records nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ale.endpoint.checks import checked_generation
from ale.endpoint.dialects import ModelCall
from ale.endpoint.dialects.dialect import MODEL
from ale.endpoint.prefill import Prefill, Step
from ale.endpoint.recorder import Prompt, Recorder, gist
from ale.endpoint.replies import cut_at_stop, given_error, turn_error, unknown_tool
from ale.endpoint.reply_form import ReplyForm
from ale.endpoint.tokenizer import ChatTokenizer
from ale.errors import (
    AleError,
    BudgetExceeded,
    ConfigError,
    ContextExceeded,
    DivergedReplay,
    EngineError,
    RequestRefused,
)
from ale.hooks import Hooks
from ale.messages import ChatReply, ChunkErrorKind, FinishWord, Message, ToolSpec
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, Sampling
from ale.specs.scaffold import ModelSession, Responder
from ale.trajectory import ChunkError, Observation
from ale.validation import named

log = logging.getLogger("ale.endpoint")

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
        prefill: Prefill | None,
    ) -> None:
        self.id = session_id
        self.recorder = Recorder(endpoint.tokenizer, endpoint.form)
        self.observations: list[Observation] = []
        self.calls = 0
        self.spent = False
        """Whether a call was refused because a budget is used up: an agent that speaks HTTP cannot raise it."""
        self.fault: AleError | None = None
        """What the last call failed with, if it was not the agent's or the budget's doing."""
        self._endpoint = endpoint
        self._sampling = sampling
        self._max_calls = max_calls
        self._max_context = max_context
        self._left = max_sampled_tokens
        """How many more tokens may be sampled; None: any number."""
        self._responder = responder
        self._prefill = prefill
        self._key = secrets.token_urlsafe(24)
        self._answering: set[asyncio.Task[Any]] = set()
        self._closed = False

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
        that asks for a shorter one. Raises as `chat` does. A call that is under way when the session is closed ends as one
        whose budget is used up.
        """
        if isinstance(self.fault, DivergedReplay):
            raise self.fault
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            replies = await self._replies(request)
        except asyncio.CancelledError:
            if not self._closed:
                raise
            task.uncancel()
            raise BudgetExceeded("The episode has ended.") from None
        except BudgetExceeded:
            self.spent = True
            raise
        except RequestRefused:
            raise
        except AleError as error:
            self.fault = error
            raise
        finally:
            self._answering.discard(task)
        self.fault = None
        for reply in replies:
            self.recorder.note(reply.chunk, request.ignored)
        return replies

    async def _replies(self, request: ModelCall) -> list[ChatReply]:
        if self._closed:
            raise BudgetExceeded("The episode has ended.")
        if self.calls + request.n > self._max_calls:
            raise BudgetExceeded(f"The episode has used its {self._max_calls} model calls.")
        first, self.calls = self.calls, self.calls + request.n
        prompt = self.recorder.prompt(request.messages, request.tools)
        if request.n == 1:
            return [await self._reply(request, prompt, first)]
        try:
            async with asyncio.TaskGroup() as group:
                made = [group.create_task(self._reply(request, prompt, first + i)) for i in range(request.n)]
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        return [task.result() for task in made]

    def count_tokens(self, request: ModelCall) -> int:
        """How many tokens the prompt of a request has; nothing is recorded."""
        return len(self.recorder.prompt(request.messages, request.tools).token_ids)

    def check_replayed(self) -> None:
        """Raises `DivergedReplay` where an expert's chunks were to be replayed, and some were not."""
        if self._prefill is not None:
            self._prefill.check_done()

    def close(self) -> None:
        """Answer nothing more; calls under way end. Idempotent."""
        self._closed = True
        for task in self._answering - {asyncio.current_task()}:
            task.cancel()

    async def _reply(self, request: ModelCall, prompt: Prompt, call: int) -> ChatReply:
        given = await self._given(request, prompt)
        if given is not None:
            reply, token_ids = given
            # An unreadable call is one whoever says it: the agent acts on that, and did when an expert said it.
            illegal = None if reply.tool_calls else self._endpoint.form.read(reply.content, "", request.tools).illegal
            chunk = self.recorder.add_given(prompt, reply, token_ids, turn_error(illegal, cut=False))
            self._endpoint.hooks.call("ale_model_called", session_id=self.id, chunk=chunk, message=reply)
            given_finish: FinishWord = "tool_calls" if reply.tool_calls else "stop"
            return ChatReply(reply, given_finish, chunk.index, len(prompt.token_ids), len(chunk), illegal)
        if self._endpoint.upstream is not None:
            return await self._forwarded(self._endpoint.upstream, request, prompt)
        sampling = self._sampling_of(call, self._longest(request, prompt))
        sent = GenerateRequest(prompt.token_ids, sampling, session=self.id, call=call)
        generation = await self._sampled(sent)
        generation, text, stop = cut_at_stop(self._endpoint.tokenizer, generation, request.stop)
        sampled = generation.token_ids
        stopped = bool(sampled) and sampled[-1] in self._endpoint.tokenizer.stop_token_ids
        parsed = self._endpoint.form.read(
            text, f"call_{call}", request.tools,
            calls=request.tool_choice != "none", within=self.recorder.begins_within(prompt),
        )  # fmt: skip
        illegal = parsed.illegal or unknown_tool(parsed.message, request.tools)
        ended = stopped or stop is not None
        error = turn_error(illegal, cut=not ended)
        chunk = self.recorder.add_sampled(prompt, generation, parsed.message, error)
        self._endpoint.hooks.call("ale_model_called", session_id=self.id, chunk=chunk, message=parsed.message)
        finish: FinishWord = "tool_calls" if parsed.message.tool_calls else "stop" if ended else "length"
        decode = self._endpoint.tokenizer.decode
        tokens = (
            tuple((decode([t]), p) for t, p in zip(sampled, generation.logprobs, strict=False))
            if request.logprobs
            else ()
        )
        return ChatReply(
            parsed.message, finish, chunk.index, len(prompt.token_ids), len(sampled), parsed.illegal, stop, tokens
        )

    async def _given(self, request: ModelCall, prompt: Prompt) -> tuple[Message, tuple[int, ...] | None] | None:
        """What somebody else answers in the policy's place, and its tokens, where they are the policy's own."""
        if self._prefill is not None:
            step = self._prefill.next(request.messages, request.tools)
            if step is not None:
                return step.reply, self._own_tokens(step, request, prompt)
        if self._responder is None:
            return None
        reply = await self._responder(request.messages, request.tools)
        return None if reply is None else (reply, None)

    def _own_tokens(self, step: Step, request: ModelCall, prompt: Prompt) -> tuple[int, ...] | None:
        """The expert's tokens where they say, in this vocabulary, what the expert said."""
        tokenizer = self._endpoint.tokenizer
        ids = step.token_ids
        if not ids or max(ids) >= tokenizer.vocab_size:
            return None
        text = tokenizer.decode(ids[:-1] if ids[-1] in tokenizer.stop_token_ids else ids)
        read = self._endpoint.form.read(text, "call", request.tools, within=self.recorder.begins_within(prompt)).message
        return ids if gist(read) == gist(step.reply) else None

    def _longest(self, request: ModelCall, prompt: Prompt) -> int:
        """How many tokens the answer may have. Raises `BudgetExceeded` where there is no room for any."""
        most = min(self._max_context, self._endpoint.engine.max_context)
        room = most - len(prompt.token_ids)
        if room < 1:
            # In the words by which clients of OpenAI and of Anthropic know it.
            raise ContextExceeded(
                f"The prompt is too long: {len(prompt.token_ids)} tokens > {most} maximum; this model's maximum context length is "
                f"{most} tokens, and that leaves no room for an answer."
            )
        if self._left is not None and self._left < 1:
            raise BudgetExceeded("The episode has sampled all the tokens that it may (rollout.max_sampled_tokens).")
        return min(self._sampling.max_tokens, request.max_tokens or room, room, self._left or room)

    async def _sampled(self, request: GenerateRequest) -> Generation:
        """What the engine says. Its tokens are taken from the budget before, so that calls side by side keep it together."""
        reserved, used = request.sampling.max_tokens, 0
        self._left = None if self._left is None else self._left - reserved
        try:
            answer: object = await self._endpoint.engine.generate(request)
            generation = checked_generation(answer, request, self._endpoint.tokenizer.vocab_size)
            used = len(generation.token_ids)
        except AleError:
            raise
        except Exception as error:
            log.exception("the engine crashed in session %s", self.id)
            raise EngineError(f"The engine crashed: {named(error)}.") from error
        finally:
            self._left = None if self._left is None else self._left + reserved - used
        return generation

    async def _forwarded(self, upstream: Source, request: ModelCall, prompt: Prompt) -> ChatReply:
        """The reply of another server's model: recorded like a demonstrator's."""
        asked = replace(request, n=1, logprobs=False, ignored={})
        (reply,) = (await upstream.answer(asked)).replies
        chunk = self.recorder.add_given(prompt, reply.message, error=given_error(reply))
        self._endpoint.hooks.call("ale_model_called", session_id=self.id, chunk=chunk, message=reply.message)
        return replace(reply, chunk=chunk.index)

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

    def __init__(
        self, tokenizer: ChatTokenizer, engine: InferenceEngine, hooks: Hooks, form: ReplyForm | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.engine = engine
        self.form = form or ReplyForm()
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
        prefill: Prefill | None = None,
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
            prefill=prefill,
        )
        self._sessions[_hashed(session.api_key)] = session
        return session

    @property
    def origin(self) -> str | None:
        """Where it is served, without the API's path."""
        return None if self.base_url is None else self.base_url.removesuffix("/v1")

    def close(self, session: EndpointSession) -> None:
        """Forget the session: its key is worth nothing from now on, and calls under way end."""
        session.close()
        self._sessions.pop(_hashed(session.api_key), None)

    def by_key(self, key: str) -> EndpointSession | None:
        """The open session that this key belongs to."""
        return self._sessions.get(_hashed(key))


def _hashed(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
