"""Hosts to aim at: a network namespace joined to this machine by a veth pair stands in for the internet.

In it are a web host, a metadata service and a name server, and one process that answers at all of them and writes down
who came. No packet of an attack can go further than that, even where it succeeds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

HOST_END, WEB, SECOND, METADATA = "10.231.77.1", "10.231.77.2", "10.231.77.3", "169.254.169.254"
HOST_END_6, WEB_6 = "fd31:77::1", "fd31:77::2"
TCP_PORTS, UDP_PORTS = (22, 80, 443, 8443), (53, 123, 443, 999)
GREETING = b"you reached the internet\n"
SERVE = """
import os, select, socket, sys
tcp, udp = eval(sys.argv[1])
poll, kinds = select.epoll(), {}
for ports, kind in ((tcp, socket.SOCK_STREAM), (udp, socket.SOCK_DGRAM)):
    for port in ports:
        sock = socket.socket(socket.AF_INET6, kind)
        sock.bind(("::", port))
        if kind == socket.SOCK_STREAM:
            sock.listen(64)
        poll.register(sock, select.EPOLLIN)
        kinds[sock.fileno()] = sock
poll.register(0, select.EPOLLIN)  # its end is the end of who started this
print("ready", flush=True)
while True:
    for fd, _ in poll.poll():
        if fd == 0:
            sys.exit()
        sock = kinds[fd]
        if sock.type == socket.SOCK_STREAM:
            conn, _ = sock.accept()
            print("tcp", *conn.getsockname()[:2], flush=True)
            conn.sendall(b"you reached the internet\\n")
            conn.close()
        else:
            data, sender = sock.recvfrom(2000)
            print("udp", *sock.getsockname()[:2], flush=True)
            sock.sendto(b"you reached the internet\\n", sender)
"""


def run(*command: str) -> None:
    """A program of this machine's; raises where it fails."""
    subprocess.run(command, check=True, capture_output=True)


class Internet:
    """The namespace, its process, who came."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "visits"
        self.link = f"ale{os.getpid() % 100000}"
        with self.log.open("wb") as log:
            command = ["unshare", "--net", "sh", "-c", 'read _; exec "$0" -c "$1" "$2"', sys.executable, SERVE]
            self.process = subprocess.Popen(
                [*command, repr((TCP_PORTS, UDP_PORTS))], stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        pid = str(self.process.pid)
        while os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.005)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "out", "netns", pid)
        run("ip", "addr", "add", f"{HOST_END}/24", "dev", self.link)
        run("ip", "-6", "addr", "add", f"{HOST_END_6}/64", "dev", self.link, "nodad")
        run("ip", "link", "set", self.link, "up")
        inside = ("nsenter", "--net", "--target", pid, "ip")
        for address in (f"{WEB}/24", f"{SECOND}/24", f"{METADATA}/32"):
            run(*inside, "addr", "add", address, "dev", "out")
        run(*inside, "-6", "addr", "add", f"{WEB_6}/64", "dev", "out", "nodad")
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "link", "set", "out", "up")
        run("ip", "route", "add", f"{METADATA}/32", "dev", self.link)
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        until = time.monotonic() + 20
        while b"ready" not in self.log.read_bytes():
            assert time.monotonic() < until, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.01)

    def visits(self) -> list[str]:
        """Who came, a line each: protocol, address, port."""
        return self.log.read_text().replace("::ffff:", "").splitlines()[1:]

    def close(self) -> None:
        """Take it all away; the link goes with its namespace."""
        with self.process:
            self.process.kill()
