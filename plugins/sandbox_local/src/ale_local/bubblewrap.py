"""Builds the bubblewrap command lines of sandboxes made of Linux namespaces.

1. A sandbox's root holds read-only binds of /usr and the base folder (`base_folder.py`), a tmpfs for each writable
   place, and its own /proc and /dev. It has no network, no capability and a clean environment.
2. If ALE runs as root, the sandboxes' users are ids of a user namespace with 65,536 unprivileged host ids
   (`Namespaces`): root inside has no rights outside, and the tests can run as another user than the agent. These ids
   may not be able to reach folders such as /root on the host, where Python may be installed; so what is bound in is
   first bound to one open folder, in a mount namespace made only for this.
3. If ALE runs as a normal user, a sandbox has one id and bubblewrap makes the user namespace itself.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from ale_local import base_folder
from ale_sandbox.host.resident_program import resident_command
from ale_sandbox.resident import seccomp

HOME = "/home/agent"
TAKEN = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc", "/dev", "/sys", "/.ale")
OVERLAPS = "overlaps with the folder of the Python that runs ALE; choose another, or set host_python: false"
JOIN_GROUPS = 'while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"'
"""A script that puts its process into the control groups before `--`, then becomes the command after it."""
HOLD = "echo ready; read _"
NETWORK_CAPS = ("CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW")
"""Capabilities with which the resident sets up a network; it then drops them."""
SETTINGS, MASKED = (
    ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"),
    ("kcore", "keys", "timer_list", "sched_debug"),
)
KERNEL = (
    *(word for name in SETTINGS for word in ("--ro-bind-try", f"/proc/{name}", f"/proc/{name}")),
    *(
        word
        for name in MASKED
        if os.path.exists(f"/proc/{name}")
        for word in ("--ro-bind", "/dev/null", f"/proc/{name}")
    ),
)
"""Paths in /proc that are hidden, as container engines do: they show and set the kernel's state, and if root runs ALE
and the sandbox has one user, the agent would have root's access to them."""
MESSAGE_QUEUES = "\tmqueue\n" in Path("/proc/filesystems").read_text() if Path("/proc/filesystems").exists() else False


@dataclass(frozen=True)
class Namespaces:
    """Descriptors of the user namespace of all sandboxes, and of the mount namespace that their binds come from."""

    user: int
    mount: int
    stage: str

    def place(self, number: int) -> str:
        """Return the folder from which a place of a fork is bound (see `launcher.py`)."""
        return f"{self.stage}/place{number}/whole"

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.user)
        os.close(self.mount)


def make_namespaces(sources: list[str], uid_base: int) -> Namespaces | None:
    """As root: make namespaces with `sources` mounted at STAGE/0, STAGE/1, ...; return None if not allowed."""
    if os.getuid() != 0:
        return None
    stage = next((p for p in ("/mnt", "/media", "/srv", "/opt") if os.path.isdir(p)), None)
    if stage is None:
        return None
    script = ["set -e", f"mount -t tmpfs -o mode=755,size=64k ale {stage}"]
    for number, source in enumerate(sources):
        script += [f"mkdir {stage}/{number}", f"mount --bind {shlex.quote(source)} {stage}/{number}"]
    # The kernel counts file watches, queued signals and message queues for a namespace's owner too. The owner must not
    # be the host's root, or a sandbox could use up root's share.
    owner = f"setpriv --reuid={uid_base} --regid={uid_base} --clear-groups"
    script.append(f"exec {owner} unshare --user sh -c {shlex.quote(HOLD)}")
    try:
        holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    with holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            return None
        try:
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{holder.pid}/{name}").write_text(f"0 {uid_base} 65536")
            user = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY)
            return Namespaces(user, os.open(f"/proc/{holder.pid}/ns/mnt", os.O_RDONLY), stage)
        except OSError:
            return None


@dataclass(frozen=True)
class Bubblewrap:
    """Builds command lines; one object serves all sandboxes of a provider."""

    base: Path
    python: str
    host_python: bool
    namespaces: Namespaces | None
    folders: tuple[str, ...] = ()
    """More folders in which the agent may write."""

    @staticmethod
    def sources(base: Path, host_python: bool) -> list[str]:
        """List the folders to bind that another user may not reach: the base folder and the host's Python."""
        return [str(base), *(base_folder.python_folders() if host_python else ())]

    @property
    def mode(self) -> str:
        """The resident's word for the users of the sandbox: `users` or `single`."""
        return "users" if self.namespaces is not None else "single"

    @property
    def pass_fds(self) -> tuple[int, ...]:
        """Descriptors that a launch needs."""
        return () if self.namespaces is None else (self.namespaces.user,)

    def command(
        self,
        control: int,
        *,
        workdir: str,
        disk_mib: int | None,
        groups: list[str],
        seccomp: int | None,
        network: list[str],
        places: Sequence[str] = (),
        layers: int = 0,
    ) -> list[str]:
        """Build the command line of a sandbox for a `Launcher`. `seccomp` is the descriptor of its filter, `network`
        the result of `gate`, `places` are the writable places, of which the first `layers` belong to a snapshot."""
        outer: list[str] = []
        if groups:
            outer += ["sh", "-c", JOIN_GROUPS, "sh", *groups, "--"]
        inner = resident_command([self.python], "/.ale", str(control))
        # Without root, bubblewrap makes another user namespace for terminals, which has no rights to the network.
        terminals = self.namespaces is not None or NETWORK_CAPS[0] not in network
        filtered = [] if seccomp is None else ["--seccomp", str(seccomp)]
        root = self.root(workdir, disk_mib, terminals, tuple(places), layers)
        return [*outer, "bwrap", *self.users(), *filtered, *root, *network, *inner]

    def users(self) -> list[str]:
        """Return the options for namespaces, ids and capabilities."""
        options = "--unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup-try --hostname sandbox "
        options += "--uid 1000 --gid 1000 --as-pid-1 --die-with-parent --clearenv --cap-drop ALL"
        if self.namespaces is None:
            return [*options.split(), "--unshare-user"]
        keep = "--cap-add CAP_SETUID --cap-add CAP_SETGID --cap-add CAP_KILL --cap-add CAP_DAC_OVERRIDE"
        return [*options.split(), *keep.split(), "--userns", str(self.namespaces.user)]

    @lru_cache(16)  # noqa: B019  # there is one object a provider
    def root(
        self, workdir: str, disk_mib: int | None, terminals: bool, written: tuple[str, ...], layers: int
    ) -> tuple[str, ...]:
        """Return the options for the file system. Of sandboxes that are alike they are the same."""
        sources = self.sources(self.base, self.host_python)
        if self.namespaces is None:
            binds = sources
        else:
            binds = [f"{self.namespaces.stage}/{number}" for number in range(len(sources))]
        options = ["--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            path = f"/{name}"
            if os.path.islink(path):
                options += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                options += ["--ro-bind", path, path]
        options += ["--ro-bind", f"{binds[0]}/etc", "/etc", "--ro-bind", f"{binds[0]}/program", "/.ale"]
        for folder in base_folder.etc_folders():
            options += ["--ro-bind", folder, folder]
        options += ["--proc", "/proc", *KERNEL, *self.devices(terminals)]
        if MESSAGE_QUEUES:  # makes message queues visible to a reset; they exist even without the mount
            options += ["--mqueue", "/dev/mqueue"]
        size = [] if disk_mib is None else ["--size", str(disk_mib << 20)]
        places = {"/dev/shm", *(written or self.writable(workdir))}
        for path in sorted(places, key=lambda path: PurePosixPath(path).parts):
            mode = "1777" if path in ("/tmp", "/dev/shm") else "0755"
            options += self.ancestors(path)
            if self.namespaces is not None and path in written[:layers]:
                options += ["--bind", self.namespaces.place(written.index(path)), path]
            else:
                options += ["--perms", mode, *size, "--tmpfs", path]
        for folder in self.folders:
            options += self.ancestors(f"{folder}/in it")
        for source, place in zip(sources[1:], binds[1:], strict=True):
            options += [*self.ancestors(source), "--ro-bind", place, source]
        return (*options, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", workdir)

    def writable(self, workdir: str) -> tuple[str, ...]:
        """List the writable places that belong to a sandbox's state. Those of `folders` begin below the root, so that
        the folders above them are writable too."""
        return tuple(dict.fromkeys(("/tmp", HOME, workdir, *("/" + PurePosixPath(f).parts[1] for f in self.folders))))

    def gate(self, folder: Path, allow: bool) -> list[str]:
        """Return the options for the network gate; with `allow` the resident gets the rights to set the network up (see
        `ale_sandbox.resident.network.network_setup`)."""
        inside = "" if self.namespaces is None else self.namespaces.stage
        source = f"{inside}/0/{folder.relative_to(self.base)}" if inside else str(folder)
        caps = NETWORK_CAPS if allow else ()
        return [*(word for cap in caps for word in ("--cap-add", cap)), "--ro-bind", source, "/.ale/gate"]

    @staticmethod
    def devices(terminals: bool) -> list[str]:
        """Return the options for the few devices, with or without pseudo terminals."""
        if terminals:
            return ["--dev", "/dev"]
        options = ["--tmpfs", "/dev"]
        for name in ("null", "zero", "full", "random", "urandom"):
            options += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
        for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            options += ["--symlink", f"/proc/self/{target}", f"/dev/{name}"]
        return options

    @staticmethod
    def ancestors(path: str) -> list[str]:
        """Return options that make the folders above a mount point open to all users (bubblewrap would close them)."""
        options: list[str] = []
        for parent in reversed(PurePosixPath(path).parents):
            if str(parent) not in ("/", "/dev", "/tmp"):
                options += ["--perms", "0755", "--dir", str(parent)]
        return options


@lru_cache(64)
def workdir_fault(workdir: str) -> str | None:
    """Return what is wrong with a work folder, as the end of a sentence; None if nothing is."""
    if (fault := folder_fault(workdir)) is not None:
        return fault
    path = PurePosixPath(workdir)
    if str(path) in ("/tmp", "/home", HOME):
        return "must be an absolute path other than /, such as /workspace"
    return OVERLAPS if any(Path(source).is_relative_to(path) for source in base_folder.python_folders()) else None


def folder_fault(folder: str) -> str | None:
    """Return why a sandbox cannot have a writable folder of this name, as the end of a sentence; None if it can."""
    path = PurePosixPath(folder)
    if not path.is_absolute() or ".." in path.parts or str(path) == "/" or "\0" in folder:
        return "must be an absolute path other than /, such as /workspace"
    if any(path.is_relative_to(taken) for taken in TAKEN):
        return "lies in a folder of the system, which is read-only in a sandbox"
    return OVERLAPS if any(path.is_relative_to(source) for source in base_folder.python_folders()) else None


def probe(wrap: Bubblewrap) -> str | None:
    """Start a test sandbox; return why it does not work, or None if it works."""
    if shutil.which("bwrap") is None:
        return "there is no program `bwrap`"
    filter_fd = seccomp.open_program()
    command = wrap.command(0, workdir="/workspace", disk_mib=1, groups=[], seccomp=filter_fd, network=[])
    end = len(command) - len(resident_command([wrap.python], "/.ale", "0"))
    try:
        done = subprocess.run(
            [*command[:end], wrap.python, "-I", "-S", "-c", "import ctypes, select"],
            pass_fds=(*wrap.pass_fds, *(() if filter_fd is None else (filter_fd,))),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        if filter_fd is not None:
            os.close(filter_fd)
    return (
        None
        if done.returncode == 0
        else done.stderr.decode("utf-8", "replace").strip() or "it failed without a message"
    )
