"""ROCK's own client moves files over the object storage that the service names."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from oss_server import KEY, SECRET, TOKEN, ObjectStore, object_store
from rock.actions import Command
from rock.actions.sandbox.request import ChmodRequest, UploadMode
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig
from service_process import PATIENT, serving
from support.sandbox_providers import must_answer

pytestmark = [pytest.mark.bwrap, pytest.mark.filterwarnings("ignore:deprecated")]
PROGRAMS = {
    "ossutil": """
import sys, oss2
if sys.argv[1] == "cp":
    given = dict(zip(sys.argv[4::2], sys.argv[5::2]))
    bucket, _, key = sys.argv[3].removeprefix("oss://").partition("/")
    auth = oss2.StsAuth(given["--access-key-id"], given["--access-key-secret"], given["--sts-token"])
    oss2.Bucket(auth, given["--endpoint"], bucket, region=given["--region"]).put_object_from_file(key, sys.argv[2])
""",
    "wget": "import sys, urllib.request; urllib.request.urlretrieve(sys.argv[3], sys.argv[2])",
    "unzip": "",
}
"""Programs of a sandbox's image that ROCK's client runs; those of this machine are used before these."""
FOLDER = "/tmp/programs"


@pytest.fixture
async def store() -> AsyncIterator[ObjectStore]:
    """An empty object storage."""
    with object_store() as running:
        yield running


@pytest.fixture
async def box(store: ObjectStore, tmp_path: Path) -> AsyncIterator[Sandbox]:
    """A sandbox that reaches the storage, at a service that names it."""
    must_answer("local")
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"AccessKeyId": KEY, "SecretAccessKey": SECRET, "SessionToken": TOKEN}))
    storage = {"url": f"{store.url}/bucket/transfer", "credentials": f"cat {keys}"}
    (tmp_path / "own.yaml").write_text(f"{PATIENT}\nobject_storage: {json.dumps(storage)}\n")
    with serving(tmp_path, "--settings", "own.yaml") as service:
        start: dict[str, Any] = {"sandbox_id": "box", "image": "any", "cpus": 0.5, "memory": "512m"}
        start |= {"network": "allow", "allow": [store.url.removeprefix("http://")]}
        start["env"] = {"PATH": f"/usr/local/bin:/usr/bin:/bin:{FOLDER}"}
        async with httpx.AsyncClient(base_url=service.url, timeout=300) as http:
            started = (await http.post("/apis/envs/sandbox/v1/start_async", json=start)).json()
        assert started["status"] == "Success", started
        box = Sandbox(SandboxConfig(base_url=service.url))
        await box.attach("box")
        for name, program in PROGRAMS.items():
            written = await box.write_file_by_path(f"#!{sys.executable}\n{program}", f"{FOLDER}/{name}")
            assert written.success, written.message
        await box.fs.chmod(ChmodRequest(paths=[FOLDER], mode="755", recursive=True))
        yield box


async def test_files_go_both_ways_over_the_storage(box: Sandbox, store: ObjectStore, tmp_path: Path) -> None:
    sent = tmp_path / "large file"
    sent.write_bytes(bytes(range(256)) * 8192)
    uploaded = await box.upload_by_path(sent, "/root/up/large file")
    assert uploaded.success, uploaded.message
    (key,) = store.objects
    assert key.startswith("/bucket/transfer/"), "not by the service, which takes it too"
    counted = await box.execute(Command(command=["md5sum", "/root/up/large file"]))
    assert counted.exit_code == 0, counted

    downloaded = await box.fs.download_file("/root/up/large file", tmp_path / "back")
    assert downloaded.success, downloaded.message
    assert (tmp_path / "back").read_bytes() == sent.read_bytes()
    assert (len(store.objects), store.refused) == (2, [])

    missing = await box.fs.download_file("/root/nothing", tmp_path / "nothing")
    assert (missing.success, "not found" in missing.message) == (False, True)
    explicit = await box.upload_by_path(sent, "/testbed/again", UploadMode.OSS)
    assert explicit.success, explicit.message
