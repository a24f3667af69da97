"""The page of figures, and the dashboard for Grafana, name exactly what programs serve."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from psyche_core.exporters.local_status import LocalStatus
from psyche_core.exporters.prometheus import exposition
from psyche_core.exporters.tracker_thread import FINISH_SECONDS, QUEUE_EVENTS
from psyche_core.telemetry.metrics import MAX_SERIES, METRICS, Metric
from psyche_core.training.update_statistics import SAMPLE

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "metrics.md").read_text()
DASHBOARD: dict[str, Any] = json.loads((DOCS / "how-to" / "grafana-dashboard.json").read_text())


def row(metric: Metric) -> str:
    name = metric.name + ("_total" if metric.kind == "counter" else "")
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    key = f"`{metric.key}`" if metric.key else ""
    return f"| `{name}` | {metric.kind} | {labels} | {key} | {metric.help} |"


def test_the_table_is_the_code_s() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `psyche_")]
    assert rows == [row(metric) for metric in METRICS.values()]
    assert f"at most {MAX_SERIES} sets" in PAGE


def test_the_fields_of_the_json_object_are_the_code_s() -> None:
    _, _, part = PAGE.partition("## The JSON object")
    named = [name for line in part.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(named) == sorted(LocalStatus().document())
    nothing = {name for name, value in LocalStatus().document().items() if value is None}
    (null,) = [set(re.findall(r"`(\w+)`", line.split("|")[1])) for line in part.splitlines() if "always null" in line]
    assert null == nothing


def test_limits_on_the_page_hold() -> None:
    page = (DOCS / "how-to" / "trackers-and-metrics.md").read_text()
    assert f"a queue of {QUEUE_EVENTS:,} events" in page
    assert f"at most {SAMPLE:,} values" in page
    assert f"waits {FINISH_SECONDS:.0f} s" in page


def test_every_query_of_the_dashboard_names_metrics_and_labels_that_are_served() -> None:
    families = list(text_string_to_metric_families(exposition(list).decode()))
    served = {family.name + ("_total" if family.type == "counter" else ""): family for family in families}
    labels = {metric.name: {*metric.labels, "job", "instance"} for metric in METRICS.values()}
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
    assert len(queries) > 20
    for query in queries:
        named = re.findall(r"psyche_[a-z_]+", query)
        assert named, query
        assert set(named) <= set(served), query
        used = set(re.findall(r"(\w+)=~", query)) | set(re.findall(r"by \((\w+)\)", query))
        assert used <= set.union(*(labels[name.removesuffix("_total") if name not in labels else name] for name in named)), query
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            (name,) = re.findall(r"psyche_[a-z_]+", target["expr"])
            assert shown <= labels[name.removesuffix("_total")], target


def test_the_dashboard_can_be_imported() -> None:
    """Its panels have numbers and places of their own, and its sources are variables, not somebody's own."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(panels))) <= variables
