"""What sandbox pools and engine have counted, for the metrics of a step."""

from __future__ import annotations

from ale_train.workbench.workbench import Workbench


def resource_metrics(bench: Workbench) -> dict[str, float]:
    """Return the metrics of the sandbox pools as `pool/<metric>`, and those of the engine as `engine/<metric>`."""
    return bench.pool_metrics() | {f"engine/{name}": value for name, value in bench.engine.metrics().items()}
