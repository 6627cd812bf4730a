"""The panels of the dashboard."""

from typing import Any

from cluster.tracking.grafana import dashboard


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
