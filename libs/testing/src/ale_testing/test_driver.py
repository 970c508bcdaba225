"""These tests check a driver of any kind: what it declares, how wrong settings fail, and that it leaves nothing."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from ale.errors import AleError
from ale.registry.drivers import FoundObserver, validate_settings
from ale.registry.validation import model_in
from ale.registry.versions import describe_mismatch
from ale.specs.kinds import CAPABILITIES
from ale_testing.async_tests import async_test
from ale_testing.plugin_under_test import Subject
from ale_testing.template_leftovers import find_leftovers


def models(
    model: type[BaseModel], path: tuple[str, ...] = (), above: tuple[type[BaseModel], ...] = ()
) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    """Yield a `Config` and every model in it, with its path; a model that contains itself is visited once."""
    yield path, model
    for name, field in model.model_fields.items():
        inner = model_in(field.annotation)
        if inner is not None and inner not in above:
            yield from models(inner, (*path, name), (*above, inner))


def test_it_declares_a_range_of_contract_versions(subject: Subject) -> None:
    declared = str(subject.cls.api_version)
    if not subject.info.package and not declared:
        return  # a class in a file of the user's goes with the run
    if issubclass(subject.cls, FoundObserver):
        pytest.fail("An observer must be a class made from ale.specs.events.Observer to be published.", pytrace=False)
    unfit = describe_mismatch(declared, subject.info.package)
    assert unfit is None, f"it {unfit}"


def test_its_methods_are_async_where_the_contract_says_so(subject: Subject) -> None:
    contract = next(c for c in subject.cls.__mro__ if c.__module__.startswith("ale.specs."))
    for name, method in inspect.getmembers(contract, inspect.isfunction):
        if name.startswith("_"):
            continue
        own, asked = getattr(subject.cls, name), inspect.iscoroutinefunction(method)
        is_async = inspect.iscoroutinefunction(inspect.unwrap(own))
        kind = (
            "a coroutine function (async def): it is called with await"
            if asked
            else "a plain function (def): it is called without await"
        )
        assert is_async == asked, f"{name}() must be {kind}"


def test_its_manifest_if_there_is_one_agrees_with_its_class(subject: Subject) -> None:
    assert subject.info.api_version in ("", subject.cls.api_version), (
        f"ale-plugin.json must say the api_version of the class, {subject.cls.api_version!r}; "
        f"it says {subject.info.api_version!r}"
    )
    if subject.info.capabilities is not None:
        assert set(subject.info.capabilities) == set(subject.cls.capabilities), (
            f"ale-plugin.json must list the capabilities of the class, {sorted(subject.cls.capabilities)}, or none; "
            f"it lists {sorted(subject.info.capabilities)}"
        )
    assert subject.info.summary or not subject.info.package, "the package needs a summary (description)"


def test_its_readme_is_no_longer_the_templates(subject: Subject) -> None:
    if not subject.info.package:
        return  # a file of the user's has none
    left = find_leftovers(subject.info.package, {f"{subject.kind} '{subject.info.name}'": subject.info.summary})
    assert not left, "; ".join(map(str, left))


def test_its_capabilities_are_known(subject: Subject) -> None:
    for word in subject.cls.capabilities:
        assert word in CAPABILITIES[subject.kind] or "." in word, (
            f"'{word}' is no capability of kind {subject.kind} ({', '.join(CAPABILITIES[subject.kind])}); "
            "one of its own must have a dot, such as 'acme.migrate'"
        )
    extra = subject.cls.provides(subject.config) - subject.cls.capabilities
    words = ", ".join(extra)
    assert not extra or all(w in CAPABILITIES[subject.kind] for w in extra), f"provides() names unknown {words}"
    for kind, needed in subject.cls.needs(subject.config).items():
        assert kind in CAPABILITIES, f"needs() names the kind '{kind}', which there is not"
        assert not isinstance(needed, str), f"needs()['{kind}'] must be a collection of capabilities, not one text"


def test_every_setting_has_a_description(subject: Subject) -> None:
    for path, model in models(subject.cls.Config):
        for name, field in model.model_fields.items():
            inner = model_in(field.annotation)
            assert field.description or inner is not None, (
                f"the setting {'.'.join((*path, name))} must have a description"
            )


def test_unknown_keys_are_refused_at_every_level(subject: Subject) -> None:
    for path, model in models(subject.cls.Config):
        where = ".".join(("Config", *path))
        assert model.model_config.get("extra") == "forbid", (
            f"{where} must refuse unknown keys (extra='forbid'), or a typo there would do nothing in silence"
        )
        try:
            model.model_validate({"no_such_key": 1})
            reported = False
        except ValidationError as error:
            reported = any(e["type"] == "extra_forbidden" and "no_such_key" in e["loc"] for e in error.errors())
        assert reported, f"{where} must refuse unknown keys by their name, whatever it does to its values before"
    settings: dict[str, Any] = {**subject.config.model_dump(mode="json", exclude_unset=True), "no_such_key": 1}
    sentence = _refusal_of(subject, settings)
    assert "no_such_key: there is no such key" in sentence, (
        f"an unknown key must be reported with its path; the error was: {sentence}"
    )


def test_settings_are_frozen(subject: Subject) -> None:
    for path, model in models(subject.cls.Config):
        where = ".".join(("Config", *path))
        assert model.model_config.get("frozen"), f"{where} must be frozen, as ale.specs.driver.PluginConfig is"


def test_a_setting_of_the_wrong_type_is_an_error_with_its_path(subject: Subject) -> None:
    for name, field in subject.cls.Config.model_fields.items():
        members = set(get_args(field.annotation)) or {field.annotation}
        if any(m in (Any, object, dict) or get_origin(m) is dict for m in (*members, get_origin(field.annotation))):
            continue
        settings = {**subject.config.model_dump(mode="json", exclude_unset=True), name: {"no": {"such": "value"}}}
        message = _refusal_of(subject, settings)
        outcome = f"the error was: {message}" if message else "it was accepted"
        assert message.startswith(f"{subject.kind}.{name}"), (
            f"a wrong value of '{name}' must be reported with its path; {outcome}"
        )


def _refusal_of(subject: Subject, settings: dict[str, Any]) -> str:
    """Return the error message for these settings, or nothing if they are accepted."""
    try:
        validate_settings(subject.cls, settings, subject.kind)
    except AleError as error:
        return str(error)
    return ""


def test_its_import_prints_nothing(subject: Subject) -> None:
    code = f"from ale.registry.drivers import load_driver_class; load_driver_class({subject.kind!r}, {subject.name!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"its import fails in a fresh process: {done.stderr[-500:]}"
    assert not done.stdout, f"its import must print nothing; it printed {done.stdout[:200]!r}"


@async_test
async def test_close_may_be_called_twice_and_without_a_start(subject: Subject) -> None:
    driver = subject.build()
    await driver.close()
    driver = subject.build()
    async with driver:
        pass
    await driver.close()


@async_test
async def test_constructing_a_driver_acquires_no_resources(subject: Subject) -> None:
    before = _held_resources()
    drivers = [subject.build() for _ in range(3)]
    new = {kind: some for kind, some in _new_resources(before, _held_resources()).items() if some}
    assert not new, f"a driver must acquire nothing before start(): {new}"
    del drivers


@async_test
async def test_start_and_close_leave_nothing_behind(subject: Subject) -> None:
    async with subject.build():  # what is loaded once for the whole process is not counted
        pass
    await _wait_until_settled()
    before = _held_resources()
    for _ in range(2):
        async with subject.build():
            pass
    for _ in range(40):
        await _wait_until_settled()
        if not _new_resources(before, _held_resources()):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(
        f"start() and close() left behind {json.dumps(_new_resources(before, _held_resources()), default=str)}"
    )


@async_test
async def test_a_start_that_is_cancelled_can_be_closed(subject: Subject) -> None:
    for after_s in (0.0, 0.001, 0.02):
        driver = subject.build()

        async def enter(it: Any = driver) -> None:
            async with it:
                await asyncio.sleep(30)

        task = asyncio.create_task(enter())
        await asyncio.sleep(after_s)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=60)
        assert done, "a cancelled start() must end; it still runs after 60 s"
        assert task.cancelled(), f"a cancelled start() must raise CancelledError, not {task.exception()!r}"


async def _wait_until_settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def _held_resources() -> dict[str, set[str]]:
    """What this process holds now: threads, children, open files, temporary entries."""
    here = Path("/proc/self")
    # The loop's own pool (asyncio.to_thread) may gain threads when the machine is busy; it ends with the loop.
    others = (t for t in threading.enumerate() if t is not threading.current_thread() and t.name[:8] != "asyncio_")
    held = {"threads": {str(t.ident) for t in others}}
    if here.is_dir():
        files = set()
        for fd in os.listdir("/proc/self/fd"):
            try:
                files.add(f"{fd} -> {os.readlink(f'/proc/self/fd/{fd}')}")
            except OSError:
                continue
        held["open files"] = {f for f in files if "/proc/" not in f}
        held["processes"] = set()
        for children in here.glob("task/*/children"):
            with suppress(OSError):  # that thread has ended
                held["processes"] |= set(children.read_text().split())
    held["temporary entries"] = set(os.listdir(tempfile.gettempdir()))
    return held


def _new_resources(before: dict[str, set[str]], after: dict[str, set[str]]) -> dict[str, list[str]]:
    """What is held now and was not before; threads are compared by number only."""
    more = {name: sorted(after[name] - before[name]) for name in after}
    if len(after["threads"]) <= len(before["threads"]) + 1:  # asyncio's own pool for blocking calls
        more["threads"] = []
    if len(after.get("open files", ())) <= len(before.get("open files", ())):
        more["open files"] = []
    return {name: found for name, found in more.items() if found}
