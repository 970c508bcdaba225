"""The object storage that clients are told of: where it is, and credentials from the operator's command."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ale_rock.admin.object_storage import ObjectStorage

KEYS = {"Version": 1, "AccessKeyId": "the-key", "SecretAccessKey": "the-secret", "SessionToken": "the-token"}
URL = "https://oss-cn-hangzhou.aliyuncs.com/bucket/some/prefix/"


def command(text: str) -> str:
    """A command that runs this in Python."""
    return shlex.join([sys.executable, "-c", text])


def in_(minutes: int) -> str:
    """A time from now."""
    return (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()


def counting(folder: Path, keys: dict[str, Any]) -> str:
    """A command that prints keys, and writes down that it ran."""
    return command(f"open({str(folder / 'runs')!r}, 'a').write('x'); print({json.dumps(keys)!r})")


async def test_a_client_gets_address_and_credentials_in_rocks_words(serve, tmp_path):
    storage = {"url": URL, "credentials": counting(tmp_path, {**KEYS, "Expiration": "2999-01-02T03:04:05+02:00"})}
    async with serve(object_storage=storage) as admin:
        for account in ("primary", "legacy"):
            assert (await admin.get("/get_token", account=account))["result"] == {
                "AccessKeyId": "the-key", "AccessKeySecret": "the-secret", "SecurityToken": "the-token",
                "Expiration": "2999-01-02T01:04:05Z", "Endpoint": "https://oss-cn-hangzhou.aliyuncs.com",
                "Bucket": "bucket", "Prefix": "some/prefix", "Region": "cn-hangzhou",
            }  # fmt: skip
    assert (tmp_path / "runs").read_text() == "x", "they are kept until they expire"


async def test_credentials_that_expire_soon_are_replaced(serve, tmp_path):
    storage = {"url": URL, "credentials": counting(tmp_path, {**KEYS, "Expiration": in_(9)})}
    async with serve(object_storage=storage) as admin:
        for _ in range(2):
            assert (await admin.get("/get_token"))["status"] == "Success"
    assert (tmp_path / "runs").read_text() == "xx"


@pytest.mark.parametrize(
    ("credentials", "why"),
    [
        ("/no/such/program", "cannot be run"),
        (command("exit(3)"), "ended with exit code 3"),
        (command("print('secret-value')"), "printed no credentials"),
        (command('print(\'{"AccessKeyId": "secret-value"}\')'), "SecretAccessKey"),
    ],
)
async def test_a_command_that_gives_none_is_the_services_fault_and_stays_secret(serve, credentials, why):
    async with serve(object_storage={"url": URL, "credentials": credentials}) as admin:
        answer = await admin.get("/get_token")
        assert (answer["result"]["code"], why in answer["message"]) == (5000, True)
        assert "secret-value" not in str(answer)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("oss-cn-hangzhou.aliyuncs.com", "names no bucket"),
        ("https://oss-cn-hangzhou.aliyuncs.com/", "names no bucket"),
        ("s3://bucket/prefix", "names no bucket"),
        ("https://s3.eu-west-1.amazonaws.com/bucket", "Amazon's S3"),
    ],
)
def test_a_storage_that_clients_could_not_use_is_refused(url, why):
    with pytest.raises(ValidationError, match=why):
        ObjectStorage(url=url, credentials="true")


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("http://oss-eu-central-1-internal.aliyuncs.com/b", "eu-central-1"),
        ("http://127.0.0.1:9000/b", "default"),
    ],
)
def test_the_region_is_in_the_hosts_name_or_given(url, region):
    assert ObjectStorage(url=url, credentials="true").place()["Region"] == region
    assert ObjectStorage(url=url, credentials="true", region="r").place()["Region"] == "r"
