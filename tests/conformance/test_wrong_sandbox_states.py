"""Deliberately wrong resets, snapshots, checkpoints and trees: each breaks a rule, and the kit says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong import SANDBOX, Wrong, assert_found

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]


BUILDS = """
from ale_local import LocalSandboxProvider
class Fixed(LocalSandboxProvider):
    capabilities = LocalSandboxProvider.capabilities | {"builds"}
    default_image = "base"
    @classmethod
    def provides(cls, config):
        return cls.capabilities
    async def image_from(self, build):
        return "one"
"""
WRONG = {
    "builds that it only claims": Wrong(
        "sandbox",
        BUILDS.replace("image_from", "make_image"),
        "test_who_claims_to_build_has_the_protocol",
        "the capability 'builds' means: it has image_from (async)",
    ),
    "one image for all": Wrong(
        "sandbox",
        BUILDS,
        "test_the_same_content_is_built_once_and_other_content_is_another_image",
        "other files beside the Dockerfile must give another image",
    ),
    "a Dockerfile that fails is an image": Wrong(
        "sandbox",
        BUILDS,
        "test_a_dockerfile_that_fails_is_the_tasks_fault_with_its_output",
        "a Dockerfile with 'RUN echo kit-says-why; exit 3': it must raise TaskError, it returned 'one'",
    ),
    "a snapshot of the work folder alone": Wrong(
        "sandbox",
        SANDBOX
        + """
        from dataclasses import replace
        box.snapshot_maker = replace(box.snapshot_maker, places=box.snapshot_maker.places[2:])
""",
        "test_a_snapshot_keeps_owners_modes_and_links",
        "files, modes and links must be as they were, in the home and /tmp too",
    ),
    "a snapshot that loses what runs": Wrong(
        "sandbox",
        SANDBOX
        + """
        box.__class__ = Kept
    async def start(self):
        await super().start()
        self.sandbox_type = Kept
    @classmethod
    def sandbox_type_with(cls, config):
        return Kept
class Kept(IsolatedSandbox):
    async def checkpoint(self, name=None):
        return await self.snapshot(name)
""",
        "test_processes_continue_and_so_do_their_copies",
        "what ran must run in a sandbox that starts from a snapshot with processes",
    ),
    "an unnamed snapshot that stays": Wrong(
        "sandbox",
        SANDBOX
        + """
    async def close(self):
        if self.layers is not None:
            self.layers.unnamed.clear()
        await super().close()
""",
        "test_named_snapshots_stay_until_they_are_removed_and_others_do_not",
        "a snapshot without a name must go with its provider",
    ),
    "a removal that does nothing": Wrong(
        "sandbox",
        SANDBOX
        + """
    async def remove_snapshot(self, name):
        pass
""",
        "test_named_snapshots_stay_until_they_are_removed_and_others_do_not",
        "remove_snapshot() must take it off the list",
    ),
    "a snapshot that ends what runs": Wrong(
        "sandbox",
        SANDBOX
        + """
        real = box.snapshot
        async def snapshot(name=None):
            await box.kill_agent_processes()
            return await real(name)
        box.snapshot = snapshot
""",
        "test_a_snapshot_may_be_made_while_processes_run",
        "what runs must go on after a snapshot",
    ),
    "a fork that is a copy": Wrong(
        "sandbox",
        SANDBOX.replace(
            "return box", "if spec.from_snapshot:\n            await box.exec('cp large copy')\n        return box"
        ),
        "test_forks_cost_no_copy",
        "a fork must not hold a copy of the snapshot",
    ),
    "a tree that follows links": Wrong(
        "sandbox",
        SANDBOX
        + """
        real = box.download_tree
        async def download_tree(source, target, **more):
            await box.exec(f"rm -rf /tmp/flat; cp -rL {source} /tmp/flat")
            await real("/tmp/flat", target, **more)
        box.download_tree = download_tree
""",
        "test_a_refused_download_writes_nothing",
        "download_tree of a tree with a link out of it (abs): it must raise SandboxError, it returned None",
    ),
    "a tree whose links are files of the host": Wrong(
        "sandbox",
        SANDBOX
        + """
        real = box.upload_tree
        async def upload_tree(source, target, **more):
            if source.is_dir():
                import shutil
                source = shutil.copytree(source, source.with_name("flat-" + source.name))
            await real(source, target, **more)
        box.upload_tree = upload_tree
""",
        "test_uploads_of_links_out_pipes_sockets_and_missing_trees_are_refused",
        "upload_tree of a tree with a link out of it (absolute): it must raise SandboxError, it returned None",
    ),
    "a tree without its executable bits": Wrong(
        "sandbox",
        SANDBOX
        + """
        real = box.upload_tree
        async def upload_tree(source, target, **more):
            await real(source, target, **more)
            await box.exec(f"find {target} -type f -exec chmod a-x {{}} +")
        box.upload_tree = upload_tree
""",
        "test_a_tree_is_the_same_after_upload_and_download",
        "upload_tree must keep the executable bit: a program in the tree must run",
    ),
    "half a tree after a refusal": Wrong(
        "sandbox",
        SANDBOX
        + """
        real = box.download_tree
        async def download_tree(source, target, **more):
            try:
                await real(source, target, **more)
            except SandboxError:
                target.mkdir(exist_ok=True)
                raise
        box.download_tree = download_tree
""",
        "test_a_refused_download_writes_nothing",
        "after a refusal nothing may be left; there is ['mine', 'target']",
    ),
    "a reset that keeps the environment": Wrong(
        "sandbox",
        SANDBOX
        + """
        real = box.reset
        async def reset(spec):
            await real(spec.model_copy(update={'env': {**box.spec.env, **spec.env}}))
            box.spec = spec
        box.reset = reset
""",
        "test_after_a_reset_the_environment_files_and_labels_are_those_of_the_new_spec",
        "the environment must be that of the new spec alone",
    ),
    "a reset that lets shells live": Wrong(
        "sandbox",
        SANDBOX
        + """
        real, opened = box.reset, box.open_shell
        async def open_shell(**more):
            shell = await opened(**more)
            run = shell.run
            async def again(command, **more):
                try:
                    return await run(command, **more)
                except SandboxError:
                    return ExecResult(0, b"", b"", 0.1)
            shell.run = again
            return shell
        box.open_shell = open_shell
""",
        "test_a_reset_ends_all_shells",
        "a command in a shell from before a reset: it must raise SandboxError",
    ),
    "a reset to anything": Wrong(
        "sandbox",
        SANDBOX
        + """
        real = box.reset
        async def reset(spec):
            await real(spec.model_copy(update={'workdir': box.spec.workdir}))
        box.reset = reset
""",
        "test_a_reset_changes_nothing_that_was_fixed_at_the_start",
        "a reset to another workdir: it must raise ConfigError",
    ),
}


@pytest.mark.parametrize("what", WRONG, ids=lambda what: what.replace(" ", "-"))
def test_the_kit_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    assert_found(WRONG[what], tmp_path)
