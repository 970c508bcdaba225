"""Mistakes in the command line of `ale rock` are a sentence and exit code 2, before anything is served."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path

import pytest
from support.command_line import ale

from ale_rock.admin.database_lock import database_of_this_service

SECRET = "secret-of-the-operator"


def refusal(folder: Path, *arguments: str) -> str:
    """What `ale rock` says as it refuses."""
    done = ale("rock", *arguments, cwd=folder)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("host: 0.0.0.0", "'host' is no setting of this file; --host gives it"),
        (f"tokens: [{{token: {SECRET}, role: admin}}]", "'tokens' is no setting of this file; --token-file gives it"),
        ("queue_limt: 1", "rock.queue_limt: there is no such key. Did you mean 'queue_limit'?"),
        ("- 1", "must hold keys and values"),
        ("task_sources: {bsh: {}}", "task_sources.bsh: there is no tasks plugin 'bsh'. Did you mean 'bash'?"),
        ("task_sources: {bash: {famlies: [write]}}", "task_sources.bash.famlies: there is no such key"),
        ("task_sources: {bash: {split: [}", "settings.yaml, line 1"),
    ],
)
def test_what_is_no_setting_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "settings.yaml").write_text(text)
    assert sentence in refusal(tmp_path, "serve", "--settings", "settings.yaml")


@pytest.mark.parametrize("options", [["--warm", "2"], ["--worker-settings", "w.yaml"], ["--worker-cpus", "1"]])
def test_options_of_a_worker_that_is_not_started_are_refused(tmp_path: Path, options: list[str]) -> None:
    assert "--worker none starts none" in refusal(tmp_path, "serve", "--worker", "none", *options)


@pytest.mark.parametrize(
    ("database", "sentence"),
    [
        ("sqlite:////no/such/folder/x.sqlite", "x.sqlite cannot be used: No such file or directory."),
        ("sqlite:///junk.sqlite", "junk.sqlite cannot be used: file is not a database."),
        ("mysql://anna:{secret}@host/db", "mysql://anna:***@host/db needs MySQLdb, which is not installed"),
        ("postgresql+psycopg://rock:{secret}@127.0.0.1:{port}/db", "/db cannot be used: connection failed"),
        ("a file", "no SQLAlchemy URL"),
    ],
)
def test_a_database_that_cannot_be_used_is_named_without_its_password(
    tmp_path: Path, database: str, sentence: str
) -> None:
    (tmp_path / "junk.sqlite").write_text("this is no database, however long it is read")
    with socket.socket() as taken:  # bound and not listening: nothing answers there
        taken.bind(("127.0.0.1", 0))
        database = database.format(secret=SECRET, port=taken.getsockname()[1])
        said = refusal(tmp_path, "serve", "--port", "0", "--worker", "none", "--database", database)
    assert sentence in said
    assert SECRET not in said


def test_one_database_is_of_one_service(tmp_path: Path) -> None:
    """A second one would report the sandboxes of the first as lost."""
    url = f"sqlite:///{tmp_path}/ale-rock.sqlite"
    with database_of_this_service(url):
        said = refusal(tmp_path, "serve", "--port", "0", "--worker", "none", "--database", url)
        assert "Another service uses the database" in said
    with database_of_this_service(url), database_of_this_service("sqlite://"):
        pass
    with pytest.raises(ImportError), database_of_this_service(url):
        raise ImportError("what fails once it serves is not the database's fault")


def test_where_a_file_system_has_no_locks_a_service_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(lock: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with database_of_this_service(f"sqlite:///{tmp_path}/ale-rock.sqlite"):
        assert "is not locked (No locks available)" in caplog.text


def test_a_token_in_the_place_of_its_variable_is_not_repeated(tmp_path: Path) -> None:
    said = refusal(tmp_path, "status", "--token-env", SECRET)
    assert "the name of an environment variable" in said
    assert SECRET not in said


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "nonsense", "ftp://host"])
@pytest.mark.parametrize("command", [["status", "--url"], ["worker", "--admin"], ["worker", "--url"]])
def test_what_is_no_url_is_refused(tmp_path: Path, command: list[str], url: str) -> None:
    assert f"{url!r} is no URL; write http://HOST:PORT" in refusal(tmp_path, *command, url)
