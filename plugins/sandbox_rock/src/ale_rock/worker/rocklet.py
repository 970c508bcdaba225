"""Does for one sandbox what ROCK's rocklet does: sessions, commands and files.

ROCK starts a server in each sandbox. Here the worker does its work through ALE's sandbox, so nothing listens inside.
A command's failure is a result, or a `RockError` if the client asked for that. Only a sandbox that is gone raises
`SandboxError`.
"""

from __future__ import annotations

import codecs
import re
import shlex
import time

from ale.errors import SandboxError
from ale.specs.sandbox import AGENT, Sandbox
from ale.specs.sandbox_protocols import Shell, Shells, lacks
from ale_rock.schemas import (
    CloseSessionRequest,
    CreateSessionRequest,
    ExecuteRequest,
    ExecuteResult,
    ReadFileRequest,
    ReadFileResult,
    RockError,
    RunInSessionRequest,
    RunResult,
    SessionResult,
    WriteFileRequest,
    WriteFileResult,
)
from ale_rock.worker.session import DEFAULT_TIMEOUT_S, MOST_OUTPUT_BYTES, MOST_S, Session, text_of
from ale_rock.worker.spool import Spool
from ale_rock.worker.validation import check_env, check_path
from ale_sandbox.sandboxes.sandbox import ResidentSandbox

MOST_SESSIONS = 256
MOST_WORDS_CHARS = 1 << 15
ENCODINGS = "utf-8", "utf-8-sig", "ascii", "iso8859-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be", "utf-32"
"""Some of Python's others take quadratic time."""
TEMPORARY = re.compile(r"bash-\d{16,}")
"""The names of sessions that ROCK's client makes for one command and never closes."""
TEMPORARY_KEPT, TEMPORARY_S = 32, 5.0
"""At most this many of these sessions stay open. Beyond that, sessions that were unused for this long are closed."""
OWN_USERS = (None, "", "root", "agent")
"""Names of a session's user that mean the sandbox's own user."""
ADD_USER = ("useradd", "adduser")
ONE_USER = """\
The agent has no right to add users to this sandbox. Sessions run as the agent, also those that name the user root. Only
containers of a worker with `user: root` can have more users.
"""


class Rocklet:
    """Serves one sandbox."""

    def __init__(self, sandbox: Sandbox, max_read_bytes: int) -> None:
        self.sandbox, self.max_read_bytes = sandbox, max_read_bytes
        self.sessions: dict[str, Session | None] = {}
        """Sessions by name; None while a session is being opened."""
        self.detached: list[Shell] = []
        """Shells of closed sessions whose background jobs go on; they end with the sandbox."""

    # --- sessions

    async def create_session(self, asked: CreateSessionRequest) -> SessionResult:
        """Open a session. It always has the environment of the sandbox, so `env_enable` changes nothing."""
        sandbox = self.sandbox
        if not isinstance(sandbox, Shells):
            raise lacks(sandbox, Shells)
        if asked.remote_user not in OWN_USERS:
            raise RockError(
                f"A session runs as the sandbox's own user, not as {(asked.remote_user or '')[:100]!r}; leave "
                "remote_user out, or say root, which means the same."
            )
        await self._close_temporary()
        if asked.session in self.sessions:
            raise RockError(f"The session {asked.session!r} exists already; close it, or choose another name.")
        if len(self.sessions) >= MOST_SESSIONS:
            raise RockError(f"A sandbox has at most {MOST_SESSIONS} sessions at once; close some.")
        env = check_env(asked.env or {})
        self.sessions[asked.session] = None
        try:
            session, output = await Session.open(sandbox, env, asked.startup_source)
        except BaseException:
            del self.sessions[asked.session]
            raise
        self.sessions[asked.session] = session
        return SessionResult(output=output)

    async def run_in_session(self, asked: RunInSessionRequest) -> RunResult:
        """Run a command in a session."""
        session = self.sessions.get(asked.session)
        if session is None:
            raise RockError(f"There is no session {asked.session!r} in this sandbox; create it with create_session.")
        try:
            return await session.run(asked)
        except SandboxError as error:
            raise self.blame(error) from None

    async def close_session(self, asked: CloseSessionRequest) -> SessionResult:
        """Close a session. Jobs that the client started with nohup go on."""
        session = self.sessions.get(asked.session)
        if session is None:
            raise RockError(f"There is no session {asked.session!r} in this sandbox.")
        del self.sessions[asked.session]
        await self._close(session)
        return SessionResult()

    async def _close(self, session: Session) -> None:
        if not await session.close():
            self.detached.append(session.shell)

    async def _close_temporary(self) -> None:
        named = [name for name in self.sessions if TEMPORARY.fullmatch(name)]
        unused = [name for name in named if self._is_unused(name)]
        for name in unused[: max(0, len(named) - TEMPORARY_KEPT)]:
            session = self.sessions.pop(name, None)
            if session is not None:
                await self._close(session)

    def _is_unused(self, name: str) -> bool:
        session = self.sessions[name]
        if session is None or session.busy or session.jobs.running:
            return False
        return time.monotonic() - session.used_at > TEMPORARY_S

    # --- commands

    async def execute(self, asked: ExecuteRequest) -> ExecuteResult:
        """Run a program without a shell; text is split into words as a shell would. A time-out gives 124."""
        if isinstance(asked.command, str) and len(asked.command) > MOST_WORDS_CHARS:  # splitting takes quadratic time
            raise RockError(
                f"A command of more than {MOST_WORDS_CHARS} characters is not split into words; send a list."
            )
        try:
            words = shlex.split(asked.command) if isinstance(asked.command, str) else asked.command
        except ValueError as error:
            raise RockError(f"The command cannot be split into words: {error}. Send a list.") from None
        if not words or not words[0]:
            raise RockError("The command is empty.")
        done = await self.sandbox.exec(
            f"exec {shlex.join(words)}",
            timeout_s=min(asked.timeout or DEFAULT_TIMEOUT_S, MOST_S),
            cwd=asked.cwd,
            env=check_env(asked.env or {}),
            max_output_bytes=MOST_OUTPUT_BYTES,
        )
        stderr = text_of(done.stderr)
        if done.exit_code and words[0].rpartition("/")[2] in ADD_USER:
            stderr = f"{stderr.rstrip()}\n{ONE_USER}".lstrip()
        return ExecuteResult(stdout=text_of(done.stdout), stderr=stderr, exit_code=done.exit_code)

    # --- files

    async def read_file(self, asked: ReadFileRequest) -> ReadFileResult:
        """Read a text file."""
        try:
            if codecs.lookup(asked.encoding or "utf-8").name not in ENCODINGS:
                raise RockError(f"Text is not read as {asked.encoding}; choose one of {', '.join(ENCODINGS)}.")
            content = await self.sandbox.download(check_path(asked.path), max_bytes=self.max_read_bytes)
            return ReadFileResult(content=content.decode(asked.encoding or "utf-8", asked.errors or "strict"))
        except FileNotFoundError:
            raise RockError(f"There is no file {asked.path}.") from None
        except IsADirectoryError:
            raise RockError(f"{asked.path} is a folder, not a file.") from None
        except UnicodeDecodeError as error:
            where = f"{error.reason} at byte {error.start}"
            raise RockError(f"{asked.path} is no text in {error.encoding}: {where}.") from None
        except (LookupError, ValueError, OSError, SandboxError) as error:
            raise self.blame(error) from None

    async def write_file(self, asked: WriteFileRequest) -> WriteFileResult:
        """Write a text file; its folders are made."""
        path = check_path(asked.path)
        try:
            await self.sandbox.upload({path: asked.content.encode()})
        except SandboxError as error:
            raise self.blame(error) from None
        return WriteFileResult(message=f"Wrote {path}.")

    async def put_file(self, spool: Spool, path: str, user: str = AGENT, mode: int = 0o644) -> None:
        """Write a file that has arrived."""
        try:
            await spool.put(self.sandbox, path, user, mode)
        except SandboxError as error:
            raise self.blame(error) from None

    def blame(self, error: Exception) -> Exception:
        """Return the error to raise for a call that failed. If the sandbox is alive it is the caller's fault; otherwise
        it stays the service's."""
        alive = isinstance(self.sandbox, ResidentSandbox) and not self.sandbox.channel.closed.is_set()
        return RockError(str(error)) if alive or not isinstance(error, SandboxError) else error
