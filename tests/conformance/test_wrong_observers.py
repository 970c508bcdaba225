"""Deliberately wrong observers: each breaks one rule of the contract, and the kit says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong import Wrong, assert_found

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]

HOOKS = """
import pydantic
from ale.specs.driver import PluginConfig
from ale.specs.events import Observer, hookimpl
class Fixed(Observer):
    api_version = ">=1.0,<1.2"
"""

WRONG = {
    "a hook that returns a coroutine": Wrong(
        "hooks",
        HOOKS
        + """
    @hookimpl
    def ale_run_finished(self, run_id):
        import asyncio
        return asyncio.get_running_loop().create_future()
""",
        "test_every_hook_accepts_the_arguments_of_a_run",
        "ale_run_finished is called without await: it must be no coroutine",
    ),
    "a veto that is no sentence": Wrong(
        "hooks",
        HOOKS
        + """
    @hookimpl
    def ale_before_exec(self, command): return False
""",
        "test_every_hook_accepts_the_arguments_of_a_run",
        "must answer None, or a sentence that refuses; it answered False",
    ),
    "text only, in an observer": Wrong(
        "hooks",
        HOOKS
        + """
    @hookimpl
    def ale_exec_started(self, stdin): stdin.decode()
""",
        "test_every_hook_accepts_the_arguments_of_a_run",
        "ale_exec_started must not raise; it raised UnicodeDecodeError",
    ),
    "no hook at all": Wrong(
        "hooks", HOOKS, "test_its_hooks_fit_and_there_is_at_least_one", "an observer must implement at least one hook"
    ),
    "a setting without a word": Wrong(
        "hooks",
        HOOKS
        + """
    class Config(PluginConfig):
        level: int = 3
""",
        "test_every_setting_has_a_description",
        "the setting level must have a description",
    ),
    "settings that take anything": Wrong(
        "hooks",
        HOOKS
        + """
    class Config(PluginConfig):
        @pydantic.model_validator(mode="before")
        @classmethod
        def known(cls, data):
            return {}
""",
        "test_unknown_keys_are_refused_at_every_level",
        "Config must refuse unknown keys by their name",
    ),
    "a wrong type that is taken": Wrong(
        "hooks",
        HOOKS
        + """
    class Config(PluginConfig):
        level: int = pydantic.Field(3, description="How much.")
        @pydantic.field_validator("level", mode="before")
        @classmethod
        def any_level(cls, value):
            return value if isinstance(value, int) else 3
""",
        "test_a_setting_of_the_wrong_type_is_an_error_with_its_path",
        "a wrong value of 'level' must be reported with its path; it was accepted",
    ),
    "a start that waits for ever in a thread": Wrong(
        "hooks",
        HOOKS
        + """
    async def start(self):
        import asyncio, threading
        await asyncio.to_thread(threading.Event().wait)
""",
        "test_close_may_be_called_twice_and_without_a_start",
        "a call did not return within 2 s; and a thread of the plugin's, such as asyncio.to_thread starts, never ends",
        timeout_s=2,
        hangs=True,
    ),
    "a start that blocks the loop and survives every error": Wrong(
        "hooks",
        HOOKS
        + """
    async def start(self):
        import time
        while True:
            try:
                time.sleep(1)
            except Exception:
                pass
""",
        "test_close_may_be_called_twice_and_without_a_start",
        "a call blocked the event loop; blocking work belongs in a thread",
        timeout_s=2,
        hangs=True,
    ),
    "no version": Wrong(
        "hooks",
        HOOKS.replace("    api_version", "    other"),
        "test_it_declares_a_range_of_contract_versions",
        "it does not say which contracts it was made for; write api_version = ",
    ),
    "a close that cannot be awaited": Wrong(
        "hooks",
        HOOKS
        + """
    def close(self): ...
""",
        "test_its_methods_are_async_where_the_contract_says_so",
        "close() must be a coroutine function (async def): it is called with await",
    ),
    "words at import": Wrong(
        "hooks",
        HOOKS + "    @hookimpl\n    def ale_run_finished(self): ...\nprint('welcome')\n",
        "test_its_import_prints_nothing",
        "its import must print nothing; it printed 'welcome",
    ),
    "a thread left behind": Wrong(
        "hooks",
        HOOKS
        + """
    async def start(self):
        import threading
        for _ in range(3):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
""",
        "test_start_and_close_leave_nothing_behind",
        "start() and close() left behind",
    ),
    "a file left behind": Wrong(
        "hooks",
        HOOKS
        + """
    async def start(self):
        import tempfile
        tempfile.mkdtemp()
""",
        "test_start_and_close_leave_nothing_behind",
        "temporary entries",
    ),
}


@pytest.mark.parametrize("what", WRONG, ids=lambda what: what.replace(" ", "-"))
def test_the_kit_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    assert_found(WRONG[what], tmp_path)
