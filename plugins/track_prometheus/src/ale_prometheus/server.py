"""The HTTP server of a run's metrics: `/metrics` for Prometheus, and `/`, a small page for people.

It answers in threads of its own, so that neither a scrape waits for the run nor the run for a scrape.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from socketserver import ThreadingTCPServer
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler

from ale.registry.validation import describe_error

log = logging.getLogger("ale.prometheus")
SILENCE_S = 10
"""A connection on which nothing is sent for so long is closed."""
POLL_S = 0.1
"""`close` waits at most so long for the thread that accepts connections."""


class MetricsServer(ThreadingTCPServer):
    """It listens at an address until `close`; port 0 stands for a free port. Raises `OSError` where it cannot.

    `page` makes the HTML of `/`, in a thread of the server.
    """

    allow_reuse_address = True  # a run that is resumed at once takes its port again

    def __init__(self, host: str, port: int, registry: CollectorRegistry, page: Callable[[], str]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.page = page
        self._connections = set[Any]()
        super().__init__((host, port), Handler.factory(registry))
        self._thread = threading.Thread(target=self.serve_forever, args=(POLL_S,), name="ale-prometheus", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the page."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}/" if self.address_family == socket.AF_INET6 else f"http://{host!s}:{port}/"

    def close(self) -> None:
        """Stop listening, cut the connections that are still open, and wait for all threads."""
        self.shutdown()
        self._thread.join()
        for connection in list(self._connections):
            with suppress(OSError):  # its thread has just closed it
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()  # it joins the connections' threads

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error of a request, unless the client has gone."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            log.warning("prometheus could not answer a request: %s.", describe_error(error))


class Handler(MetricsHandler):
    """It answers one request; the library's class makes the text of the metrics."""

    timeout = SILENCE_S
    server: MetricsServer

    def do_GET(self) -> None:
        """Answer with the metrics, the page, or 404."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            super().do_GET()
        elif path == "/":
            html = self.server.page().encode("ascii", "xmlcharrefreplace")
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(html)))
            self.end_headers()
            self.wfile.write(html)
        else:
            self.send_error(404)
