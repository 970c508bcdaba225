"""The model session of one episode, and the object that opens sessions.

A call takes these steps: prompt tokens from the recorder -> a responder's reply, if it has one for this call, else the
engine's -> thoughts and tool calls read from the text -> recorded -> answered. An engine that answers with messages
(`MessageEngine`) is asked for a reply instead of tokens. The session sets the sampling parameters, whatever the agent
asks for. Cancelling a call cancels the generation and records nothing."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from ale.errors import (
    AgentError,
    AleError,
    BudgetExceeded,
    ContextExceeded,
    EngineError,
    PluginError,
    SessionError,
    StartDiverged,
)
from ale.messages import ChatReply, ChunkErrorKind, FinishWord, Message, ModelCall
from ale.registry.foreign_code import Cancellations
from ale.registry.hooks import Hooks
from ale.registry.validation import describe_error
from ale.session.generation_checks import check_generation
from ale.session.long_prompts import shorten_messages
from ale.session.partial_replies import PartialReply, Progress, following
from ale.session.recorder import Prompt, Recorder, canonical_form
from ale.session.replies import cut_at_stop, turn_error, unknown_tool, unsampled_error
from ale.session.reply_format import ReplyForm
from ale.session.token_bytes import describe_tokens
from ale.session.tokenizer import ChatTokenizer
from ale.specs.engine import FollowedEngine, GenerateRequest, Generation, InferenceEngine, MessageEngine, Sampling
from ale.specs.scaffold import ModelSession
from ale.specs.start import Reply, Responder
from ale.trajectory import ChunkError, Observation

log = logging.getLogger("ale.session")


class RecordedSession(ModelSession):
    """A `ModelSession` that uses a tokenizer and an engine."""

    def __init__(
        self,
        sessions: Sessions,
        session_id: str,
        sampling: Sampling,
        *,
        max_calls: int,
        max_context: int,
        max_sampled_tokens: int | None,
        responder: Responder | None,
        shortens: bool = False,
    ) -> None:
        self.id = session_id
        self.opened_by: asyncio.Task[Any] | None = None  # its episode's; an agent over HTTP makes its calls in others
        self.recorder = Recorder(sessions.tokenizer, sessions.form)
        self.observations: list[Observation] = []
        self.calls = 0
        self.spent = False
        """Whether a budget is used up, which an agent over HTTP cannot raise; a full context may be shortened."""
        self.overlong = ""
        """Why the first prompt has no room in the context; empty if it has, or once the agent has shortened it."""
        self._shortens = shortens and not isinstance(sessions.engine, MessageEngine)
        self._shortened: dict[Message, Message] = {}
        """The messages of first prompts that lost their beginning, and what the model sees in their place."""
        self.offers_tools = False
        """Whether a request had tools, answered or not."""
        self._sessions = sessions
        self._sampling = sampling
        self._max_calls = max_calls
        self._max_context, self.max_tokens = max_context, sampling.max_tokens
        self._left = max_sampled_tokens
        """How many more tokens may be sampled; None means any number."""
        self._responder = responder
        self._used_up, self._side_calls = False, 0  # calls without tools: a title takes no call from the task
        self._answering: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def max_context(self) -> int:
        """The most tokens of a conversation, prompt and answer together."""
        return min(self._max_context, self._sessions.engine.max_context)

    async def answer(self, request: ModelCall, progress: Progress | None = None) -> list[ChatReply]:
        """The session limits the answer's length; an agent may ask for a lower limit. A call
        that is running when the session is closed ends as if its budget were used up. `progress` gets the pieces of
        replies while they are sampled, if the engine can say them."""
        if isinstance(self.fault, StartDiverged):
            raise self.fault
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        called_at, began = time.time(), time.monotonic()
        try:
            replies = await self._replies(request, progress)
        except asyncio.CancelledError:
            if not self._closed:
                raise
            task.uncancel()
            raise BudgetExceeded("The episode has ended.") from None
        except BudgetExceeded as error:
            if isinstance(error, ContextExceeded) and not self.recorder.chunks:
                self.overlong = str(error)
            self.spent, self._used_up = True, self._used_up or not isinstance(error, ContextExceeded)
            raise
        except AleError as error:
            self.fault = error
            raise
        except Exception as error:
            log.exception("a model call failed in session %s", self.id)
            self.fault = SessionError(f"The model session failed: {describe_error(error)}.")
            raise self.fault from error
        finally:
            self._answering.discard(task)
        self.fault, self.spent, self.overlong = None, self._used_up, ""
        for reply in replies:
            self.recorder.note(reply.chunk, request.ignored, called_at, time.monotonic() - began)
        return replies

    async def _replies(self, request: ModelCall, progress: Progress | None) -> list[ChatReply]:
        if self._closed:
            raise BudgetExceeded("The episode has ended.")
        self.offers_tools |= bool(request.tools)
        used = self.calls - self._side_calls if request.tools else self._side_calls
        if used + request.n > self._max_calls:
            raise BudgetExceeded(f"The episode has used its {self._max_calls} model calls.")
        first, self.calls = self.calls, self.calls + request.n
        self._side_calls += 0 if request.tools else request.n
        request, prompt = self._fit(request)
        if request.n == 1:
            return [await self._reply(request, prompt, first, 0, progress)]
        try:
            async with asyncio.TaskGroup() as group:
                numbers = range(request.n)
                made = [group.create_task(self._reply(request, prompt, first + i, i, progress)) for i in numbers]
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        return [task.result() for task in made]

    def count_tokens(self, request: ModelCall) -> int:
        """Return the number of tokens in the prompt of a request; nothing is recorded."""
        return len(self._fit(request)[1].token_ids)

    def _fit(self, request: ModelCall) -> tuple[ModelCall, Prompt]:
        """Return a request and its prompt. If the session shortens the first prompt of a conversation, as it leaves no
        room for a reply, later requests have what is left of those messages, too."""
        sent = request.messages
        if self._shortened:
            request = replace(request, messages=tuple(self._shortened.get(m, m) for m in sent))
        prompt = self.recorder.prompt(request.messages, request.tools)
        goes_on = any(message.role == "assistant" for message in sent)
        if not self._shortens or goes_on or len(prompt.token_ids) < self.max_context:
            return request, prompt
        most = self.max_context - min(self.max_tokens, max(1, self.max_context // 2))
        tools, tokenizer = request.tools, self._sessions.tokenizer
        messages = shorten_messages(
            request.messages, tokenizer, most, lambda shown: len(self.recorder.prompt(shown, tools).token_ids)
        )
        self._shortened |= {old: new for old, new in zip(sent, messages, strict=True) if old != new}
        request = replace(request, messages=messages)
        return request, self.recorder.prompt(messages, tools)

    def close(self) -> None:
        """Answer no more calls, and end running ones. It is idempotent."""
        self._closed = True
        for task in self._answering - {asyncio.current_task()}:
            task.cancel()

    async def _reply(
        self, request: ModelCall, prompt: Prompt, call: int, index: int, progress: Progress | None
    ) -> ChatReply:
        given = None if self._responder is None else await self._responder(request.messages, request.tools)
        if given is not None:
            return self._record_reply(given, request, prompt)
        if isinstance(self._sessions.engine, MessageEngine):
            return await self._forward_call(self._sessions.engine, request, prompt)
        sampling = self._sampling_of(call, self._longest(request, prompt))
        sent = GenerateRequest(prompt.token_ids, sampling, session=self.id, call=call)
        tokenizer, form = self._sessions.tokenizer, self._sessions.form
        calls, within = request.tool_choice != "none", self.recorder.begins_within(prompt)
        engine = self._sessions.engine
        if progress is not None and isinstance(engine, FollowedEngine):
            partial = PartialReply(tokenizer, form, request.stop, calls=calls, within=within)
            async with following(engine, sent, partial, index, progress):
                generation = await self._sample(sent)
        else:
            generation = await self._sample(sent)
        generation, text, stop = cut_at_stop(
            tokenizer, generation, request.stop, lambda text: form.answer_start(text, within)
        )
        sampled = generation.token_ids
        stopped = tokenizer.split_stop(sampled)[1] is not None
        parsed = form.read(text, f"call_{call}", request.tools, calls=calls, within=within)
        illegal = parsed.illegal or unknown_tool(parsed.message, request.tools)
        ended = stopped or stop is not None
        error = turn_error(illegal, cut=not ended)
        chunk = self.recorder.add_sampled(prompt, generation, parsed.message, error)
        self._sessions.hooks.call("ale_model_called", session_id=self.id, chunk=chunk, message=parsed.message)
        finish: FinishWord = "tool_calls" if parsed.message.tool_calls else "stop" if ended else "length"
        tokens = tuple(describe_tokens(tokenizer, generation, text)) if request.logprobs else ()
        return ChatReply(
            parsed.message, finish, chunk.index, len(prompt.token_ids), len(sampled), parsed.illegal, stop, tokens
        )

    def _record_reply(self, given: Reply, request: ModelCall, prompt: Prompt) -> ChatReply:
        """Record the reply of a responder and return it."""
        if not isinstance(given, Reply):
            raise PluginError(
                "A responder must answer with an ale.specs.start.Reply, or with None for the policy, not "
                f"{given!r:.100}."
            )
        reply = given.message
        # An unreadable call is illegal whoever made it: the agent reacts to that, and did so when an expert made it.
        illegal = None if reply.tool_calls else self._sessions.form.read(reply.content, "", request.tools).illegal
        token_ids = self._own_tokens(given, request, prompt)
        chunk = self.recorder.add_unsampled(prompt, reply, token_ids, turn_error(illegal, cut=False))
        self._sessions.hooks.call("ale_model_called", session_id=self.id, chunk=chunk, message=reply)
        finish: FinishWord = "tool_calls" if reply.tool_calls else "stop"
        return ChatReply(reply, finish, chunk.index, len(prompt.token_ids), len(chunk), illegal)

    def _own_tokens(self, given: Reply, request: ModelCall, prompt: Prompt) -> tuple[int, ...] | None:
        """Return a reply's token ids if they spell its message in this vocabulary."""
        tokenizer = self._sessions.tokenizer
        ids = given.token_ids
        if not ids or max(ids) >= tokenizer.vocab_size:
            return None
        text = tokenizer.decode(tokenizer.split_stop(ids)[0])
        read = self._sessions.form.read(text, "call", request.tools, within=self.recorder.begins_within(prompt)).message
        return ids if canonical_form(read) == canonical_form(given.message) else None

    def _longest(self, request: ModelCall, prompt: Prompt) -> int:
        """Return how many tokens the answer may have. Raises `BudgetExceeded` if there is no room for any."""
        most = self.max_context
        room = most - len(prompt.token_ids)
        if room < 1:
            # This is the wording by which clients of OpenAI and of Anthropic recognise the error.
            raise ContextExceeded(
                f"The prompt is too long: {len(prompt.token_ids)} tokens > {most} maximum; this model's maximum "
                f"context length is {most} tokens, and that leaves no room for an answer."
            )
        if self._left is not None and self._left < 1:
            raise BudgetExceeded("The episode has sampled all the tokens that it may (rollout.max_sampled_tokens).")
        return min(self._sampling.max_tokens, request.max_tokens or room, room, self._left or room)

    async def _sample(self, request: GenerateRequest) -> Generation:
        """Sample from the engine. Tokens are taken from the budget beforehand, so that concurrent calls keep it
        together."""
        reserved, used, cancellations = request.sampling.max_tokens, 0, Cancellations()
        self._left = None if self._left is None else self._left - reserved
        try:
            with self._sessions.sampling(self):
                answer: object = await self._sessions.engine.generate(request)
            generation = check_generation(answer, request, self._sessions.tokenizer.id_limit)
            used = len(generation.token_ids)
        except AleError:
            raise
        except asyncio.CancelledError as error:
            if cancellations.any:
                raise
            raise EngineError("The engine cancelled the call, which nobody had asked for.") from error
        except Exception as error:
            log.exception("the engine crashed in session %s", self.id)
            raise EngineError(f"The engine crashed: {describe_error(error)}.") from error
        finally:
            self._left = None if self._left is None else self._left + reserved - used
        return generation

    async def _forward_call(self, engine: MessageEngine, request: ModelCall, prompt: Prompt) -> ChatReply:
        """Return the reply of an engine that answers with messages; it is recorded like a demonstrator's."""
        asked = replace(request, n=1, logprobs=False, ignored={})
        (reply,) = (await engine.answer(asked)).replies
        chunk = self.recorder.add_unsampled(prompt, reply.message, error=unsampled_error(reply))
        self._sessions.hooks.call("ale_model_called", session_id=self.id, chunk=chunk, message=reply.message)
        return replace(reply, chunk=chunk.index)

    def _sampling_of(self, call: int, max_tokens: int) -> Sampling:
        s = self._sampling
        # Every call of a session has its own noise, which is the same when the run is repeated.
        seed = None if s.seed is None else (s.seed * 1_000_003 + call) % (1 << 62)
        stops = s.stop_token_ids or self._sessions.tokenizer.stop_token_ids
        return Sampling(s.temperature, s.top_p, s.top_k, max_tokens, stops, seed)

    def mark_error(self, chunk: int, kind: ChunkErrorKind, message: str) -> None:
        """Record that the chunk's call was illegal or failed."""
        self.recorder.mark_error(chunk, ChunkError(kind, message))

    def observe(
        self,
        chunk: int,
        tool: str,
        arguments: Mapping[str, Any],
        text: str,
        exit_code: int | None,
        seconds: float,
        reward: float | None = None,
    ) -> None:
        """Record what the environment answered."""
        if reward is not None and not math.isfinite(reward):
            raise AgentError(f"The scaffold observed a reward of {reward!r}; a step's reward must be a finite number.")
        self.observations.append(Observation(chunk, tool, dict(arguments), text, exit_code, seconds, reward))


@dataclass(eq=False)
class Sessions:
    """It opens sessions that share one tokenizer and one engine; both may be replaced between stages."""

    tokenizer: ChatTokenizer
    engine: InferenceEngine
    hooks: Hooks
    form: ReplyForm = field(default_factory=ReplyForm)
    sampling: Callable[[RecordedSession], AbstractContextManager[object]] = nullcontext
    """It is entered for as long as a session's request is at the engine, by whoever wants to know that."""

    def open(
        self,
        session_id: str,
        sampling: Sampling,
        *,
        max_calls: int,
        max_context: int,
        max_sampled_tokens: int | None = None,
        responder: Responder | None = None,
        shortens: bool = False,
    ) -> RecordedSession:
        """Open the session of one episode; the caller ends it with `close`. If it `shortens`, a first prompt that
        leaves no room for a reply loses the beginning of its longest messages of the user."""
        return RecordedSession(
            self,
            session_id,
            sampling,
            max_calls=max_calls,
            max_context=max_context,
            max_sampled_tokens=max_sampled_tokens,
            responder=responder,
            shortens=shortens,
        )
