"""Runs the public implementation of the file protocol's service on the port that it is given.

Its own metrics, which go to a collector and bring a telemetry stack with them, are left out; the rest is as it was
published."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class MetricsMonitor:
    """Takes what it is told, and does nothing."""

    @classmethod
    def create(cls, **_: Any) -> MetricsMonitor:
        """One of them."""
        return cls()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: None


for name in ("rock.admin", "rock.admin.metrics", "rock.admin.metrics.monitor"):
    module = sys.modules[name] = ModuleType(name)
    module.__path__ = []
    vars(module)["MetricsMonitor"] = MetricsMonitor

if __name__ == "__main__":
    from rock.sdk.model.server.config import ModelServiceConfig
    from rock.sdk.model.server.main import main

    main("local", ModelServiceConfig(host="127.0.0.1", port=int(sys.argv[1])))
