"""Makes a small container image from this machine's own programs, for machines that can reach no registry.

Each program is copied with its shared libraries, to the same paths. `ale-base` has a shell and the usual tools, some
30 MB; `ale-python` also has this interpreter and its standard library.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
from pathlib import Path, PurePosixPath

from ale.errors import ConfigError
from ale_sandbox.containers.python_bundle import libraries

BASE, PYTHON = "ale-base", "ale-python"
TAG = "1"
PROGRAMS = [
    "[",
    "awk",
    "base64",
    "basename",
    "bash",
    "bunzip2",
    "bzip2",
    "cat",
    "chgrp",
    "chmod",
    "chown",
    "cksum",
    "clear",
    "cmp",
    "comm",
    "cp",
    "curl",
    "cut",
    "date",
    "dd",
    "df",
    "diff",
    "dirname",
    "du",
    "echo",
    "env",
    "expand",
    "expr",
    "false",
    "file",
    "find",
    "flock",
    "fmt",
    "fold",
    "free",
    "getopt",
    "git",
    "grep",
    "egrep",
    "fgrep",
    "groups",
    "gunzip",
    "gzip",
    "head",
    "hexdump",
    "hostname",
    "id",
    "install",
    "join",
    "jq",
    "kill",
    "killall",
    "less",
    "link",
    "ln",
    "ls",
    "make",
    "md5sum",
    "mkdir",
    "mkfifo",
    "mktemp",
    "more",
    "mv",
    "nc",
    "nice",
    "nl",
    "nohup",
    "nproc",
    "od",
    "paste",
    "patch",
    "perl",
    "pgrep",
    "pidof",
    "pkill",
    "pr",
    "printenv",
    "printf",
    "ps",
    "pwd",
    "readlink",
    "realpath",
    "rev",
    "rm",
    "rmdir",
    "sed",
    "seq",
    "setsid",
    "sh",
    "sha1sum",
    "sha256sum",
    "shuf",
    "sleep",
    "sort",
    "split",
    "stat",
    "stdbuf",
    "strings",
    "stty",
    "sum",
    "sync",
    "tac",
    "tail",
    "tar",
    "tee",
    "test",
    "time",
    "timeout",
    "top",
    "touch",
    "tr",
    "tree",
    "true",
    "truncate",
    "tsort",
    "tty",
    "uname",
    "unexpand",
    "uniq",
    "unlink",
    "unxz",
    "unzip",
    "uptime",
    "vi",
    "wc",
    "wget",
    "which",
    "whoami",
    "xargs",
    "xxd",
    "xz",
    "yes",
    "zip",
]
"""The programs that are copied, if this machine has them."""
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib32": "usr/lib32", "lib64": "usr/lib64"}
FOLDERS = (
    "dev",
    "etc",
    "home",
    "proc",
    "root",
    "run",
    "srv",
    "sys",
    "tmp",
    "usr/bin",
    "usr/lib",
    "usr/lib64",
    "usr/sbin",
    "var/tmp",
)
ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
NOT_IN_PYTHON = {
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "ensurepip",
    "turtledemo",
    "lib2to3",
    "site-packages",
    "__pycache__",
}


def image_tar(python: bool) -> bytes:
    """Pack the root file system into an uncompressed tar archive. Blocks for about a second. Raises `ConfigError`."""
    path = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    programs = {name: found for name in PROGRAMS if (found := shutil.which(name, path=path)) is not None}
    if "sh" not in programs:
        raise ConfigError("This machine has no shell at its usual place, so no image can be made of its programs.")
    files = {f"usr/bin/{name}": os.path.realpath(found) for name, found in programs.items()}
    with io.BytesIO() as whole:
        with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for folder in FOLDERS:
                _entry(tar, folder, mode=0o1777 if folder.endswith("tmp") else 0o755, kind=tarfile.DIRTYPE)
            for name, target in LINKS.items():
                _entry(tar, name, mode=0o777, kind=tarfile.SYMTYPE, link=target)
            for name, text in ETC.items():
                _entry(tar, f"etc/{name}", data=text.encode())
            if python:
                files |= _python_files()
            for library in libraries([file for file in files.values() if _is_program(file)]):
                files[_translate_path(library)] = os.path.realpath(library)
            written: dict[str, str] = {}
            for name, source in sorted(files.items()):
                mode = 0o755 if os.access(source, os.X_OK) else 0o644
                if source in written:  # a program with many names: engines give the file the mode of its last name
                    _entry(tar, name, kind=tarfile.LNKTYPE, link=written[source], mode=mode)
                    continue
                written[source] = name
                _entry(tar, name, data=Path(source).read_bytes(), mode=mode)
        return whole.getvalue()


def _python_files() -> dict[str, str]:
    """List the files of the interpreter and its standard library, to be copied below /usr/local."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    executable = os.path.realpath(sys.executable)
    files = {f"usr/local/bin/{name}": executable for name in ("python", "python3", version)}
    root = Path(os.__file__).parent
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in NOT_IN_PYTHON and not name.startswith("config-")]
        for name in names:
            source = Path(folder, name)
            if source.suffix in (".py", ".so") or "lib-dynload" in folder:
                files[str(PurePosixPath("usr/local/lib", version, source.relative_to(root)))] = str(source)
    return files


def _translate_path(path: str) -> str:
    """Translate a path of this machine to the image, where /bin, /lib and others may be links into /usr."""
    first, _, rest = path.lstrip("/").partition("/")
    return f"{LINKS.get(first, first)}/{rest}"


def _is_program(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def _entry(
    tar: tarfile.TarFile,
    name: str,
    *,
    data: bytes = b"",
    mode: int = 0o644,
    kind: bytes = tarfile.REGTYPE,
    link: str = "",
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.size = kind, mode, link, len(data)
    tar.addfile(info, io.BytesIO(data) if data else None)
