"""What Prometheus's own parsers read from a scrape is what the run has reported last."""

from __future__ import annotations

import logging
import math
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from support.ports import held_port

from ale.errors import ConfigError
from ale.registry.hooks import Hooks
from ale.specs.driver import DriverContext
from ale_prometheus.gauges import gauge_name
from ale_prometheus.server import Handler, MetricsServer
from ale_prometheus.tracker import PrometheusConfig, PrometheusTracker
from ale_testing.recording_channel import RecordingChannel

SECRET = "hunter2"


class SecretiveChannel(RecordingChannel):
    """It replaces the one secret of the run."""

    def redact(self, text: str) -> str:
        return text.replace(SECRET, "${oc.env:KEY}")


@asynccontextmanager
async def served(folder: Path, port: int = 0) -> AsyncIterator[tuple[Hooks, str]]:
    """The hooks of a run with the observer, and the address that its note names."""
    channel = SecretiveChannel()
    tracker = PrometheusTracker(PrometheusConfig(port=port), DriverContext("r-7", folder, channel=channel))
    hooks = Hooks([("prometheus", tracker)])
    async with tracker:
        hooks.call("ale_run_started", run_id="r-7", run_dir=folder, config={})
        ((kind, data),) = channel.events
        assert kind == "note"
        (url,) = re.findall(r"http://\S+/metrics", data["text"])
        yield hooks, url


def get(url: str, path: str = "/metrics", accept: str = "") -> tuple[int, str]:
    """The status and the text of an answer. It blocks the event loop, as a run that computes may."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request("GET", path, headers={"Accept": accept})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def samples(url: str) -> dict[tuple[str, str], float]:
    """The values of a scrape by name and stage, without those of the process."""
    _, text = get(url)
    found = [sample for family in parse_text(text) for sample in family.samples if sample.name.startswith("ale_")]
    assert all(sample.labels["run"] == "r-7" for sample in found)
    return {(sample.name, sample.labels["stage"]): sample.value for sample in found}


async def test_a_scrape_has_the_latest_value_of_each_metric_of_each_stage(tmp_path: Path) -> None:
    async with served(tmp_path) as (hooks, url):
        assert samples(url) == {}
        hooks.call("ale_step_finished", stage="eval", step=-1, metrics={"success": 0.25, "success/scaffold:iflow": 1})
        hooks.call("ale_step_finished", stage="rl", step=1, metrics={"success": 0.5, "staleness/1": 0.125})
        hooks.call("ale_step_finished", stage="rl", step=2, metrics={"success": 0.75})
        assert samples(url) == {
            ("ale_step", "eval"): -1,
            ("ale_step", "rl"): 2,
            ("ale_success", "eval"): 0.25,
            ("ale_success", "rl"): 0.75,
            ("ale_success_scaffold_iflow", "eval"): 1,
            ("ale_staleness_1", "rl"): 0.125,
        }


async def test_a_number_that_is_not_finite_is_served_as_it_is(tmp_path: Path) -> None:
    async with served(tmp_path) as (hooks, url):
        hooks.call("ale_step_finished", stage="rl", step=1, metrics={"loss": 0.5, "kl": 0.5})
        hooks.call("ale_step_finished", stage="rl", step=2, metrics={"loss": math.nan, "kl": -math.inf})
        found = samples(url)
    assert math.isnan(found["ale_loss", "rl"]), "a value of an earlier step would hide it"
    assert found["ale_kl", "rl"] == -math.inf


@pytest.mark.parametrize("accept", ["text/plain;version=0.0.4", "application/openmetrics-text; version=1.0.0"])
async def test_both_formats_say_what_each_gauge_is_and_how_the_process_does(tmp_path: Path, accept: str) -> None:
    async with served(tmp_path) as (hooks, url):
        hooks.call("ale_step_finished", stage="eval", step=0, metrics={"pass@2": 0.5, "success/größe": 1})
        _, text = get(url, accept=accept)
    families = {family.name: family for family in (parse_open_metrics if "open" in accept else parse_text)(text)}
    assert families["ale_pass_at_2"].type == "gauge"
    assert families["ale_pass_at_2"].documentation == "The metric pass@2 (docs/metrics.md)."
    assert families["ale_success_gr__e"].samples[0].value == 1
    assert families["process_resident_memory_bytes"].samples[0].value > 0


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("bubble/trainer", "ale_bubble_trainer"),
        ("pass@2", "ale_pass_at_2"),
        ("pass^2", "ale_pass_all_2"),
        ("success/sandbox:local.0", "ale_success_sandbox_local_0"),
        ("2/a b", "ale_2_a_b"),
    ],
)
def test_a_gauge_has_the_metrics_name_as_far_as_prometheus_allows_it(metric: str, name: str) -> None:
    assert gauge_name(metric) == name


async def test_of_two_metrics_with_one_name_the_later_one_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as (hooks, url):
        for step in (1, 2):
            hooks.call("ale_step_finished", stage="rl", step=step, metrics={"a/b": step, "a b": -step, "step": -step})
        assert samples(url) == {("ale_step", "rl"): 2, ("ale_a_b", "rl"): 2}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "prometheus leaves out the metric 'a b': another one is already called ale_a_b.",
        "prometheus leaves out the metric 'step': another one is already called ale_step.",
    ]


async def test_the_page_names_the_run_its_folder_and_its_steps_and_leads_to_the_metrics(tmp_path: Path) -> None:
    folder = tmp_path / "<ö> & co"
    async with served(folder) as (hooks, url):
        hooks.call("ale_step_finished", stage="rl", step=3, metrics={})
        status, page = get(url, "/?x=1")
        assert get(url, "/nothing")[0] == 404
    assert status == 200
    for part in ("<h1>r-7</h1>", f"{tmp_path}/&lt;&#246;&gt; &amp; co", "rl: step 3", 'href="/metrics"'):
        assert part in page


async def test_a_secret_is_neither_in_the_metrics_nor_on_the_page(tmp_path: Path) -> None:
    async with served(tmp_path / SECRET) as (hooks, url):
        hooks.call("ale_step_finished", stage="rl", step=1, metrics={f"success/{SECRET}": 1.0})
        assert ("ale_success___oc_env_KEY_", "rl") in samples(url)
        for path in ("/", "/metrics"):
            assert SECRET not in get(url, path)[1]


async def test_a_port_that_is_taken_is_a_sentence_before_the_run(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=r"Give it another 'port' \(0: a free one\) or 'host'\.$") as refused:
            async with served(tmp_path, port):
                pass
    assert str(refused.value).startswith(
        f"The observer 'prometheus' cannot listen at 127.0.0.1, port {port}: Address already in use."
    )


def serving_threads() -> set[threading.Thread]:
    """The threads that may be the server's: those of servers of other tests have the same names."""
    return {thread for thread in threading.enumerate() if re.search("prometheus|process_request", thread.name)}


def wait_for_connection(before: set[threading.Thread]) -> None:
    """Wait until the server has a thread for a connection."""
    end = time.monotonic() + 20
    while not any("process_request" in thread.name for thread in serving_threads() - before):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody else gets meanwhile."""
    with held_port() as port:
        yield port


async def test_nothing_is_left_of_the_server_and_its_port_can_be_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    before = serving_threads()
    monkeypatch.setattr(Handler, "timeout", None)  # so that nothing but `close` ends the silent connection
    async with served(tmp_path, port) as (_, url):
        get(url)
        silent = socket.create_connection(("127.0.0.1", port))  # as browsers open them, for later
        wait_for_connection(before)
    with silent, suppress(ConnectionResetError):  # both are ends
        assert silent.recv(1) == b""
    assert serving_threads() <= before
    with pytest.raises(ConnectionRefusedError):
        get(url)
    async with served(tmp_path, port) as (_, again):
        assert again == url


async def test_a_connection_that_stays_silent_is_closed_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as (_, url):
        with monkeypatch.context() as patch:
            patch.setattr(Handler, "timeout", 0.05)
            with socket.create_connection(("127.0.0.1", urlsplit(url).port), timeout=60) as silent:
                assert silent.recv(1) == b""
        assert get(url)[0] == 200  # with a time limit that a slow client keeps to


def test_a_request_that_cannot_be_answered_is_a_warning_and_the_next_one_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def page() -> str:
        if not caplog.records:
            raise ValueError("spam")
        return "here"

    server = MetricsServer("127.0.0.1", 0, CollectorRegistry(), page)
    try:
        with pytest.raises(RemoteDisconnected):
            get(server.url, "/")
        assert get(server.url, "/") == (200, "here")
    finally:
        server.close()
    assert [record.getMessage() for record in caplog.records] == [
        "prometheus could not answer a request: ValueError: spam."
    ]
