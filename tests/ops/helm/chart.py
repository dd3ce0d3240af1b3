"""The chart, linted and rendered by Helm's own library, and what pods are given by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).parents[3] / "helm" / "ace-gateway"
RELEASE, NAMESPACE = "ace", "models"
NAME = "ace-ace-gateway"

SECRETS: Mapping[tuple[str, str], str] = {
    ("ace-gateway", "admin-token"): "ace-admin-token-of-the-chart",
    ("ace-gateway", "runner-token"): "ace-runner-token-of-the-chart",
    ("database", "store-url"): "postgresql://ace:secret@db.models.svc/ace",
    ("model-servers", "vllm"): "key-of-the-model-server",
}
"""What Secrets of the cluster would hold."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rendered:
    """All that one rendering made.

    Attributes:
        notes: What Helm prints after an installation.
    """

    objects: tuple[Document, ...]
    notes: str

    def all(self, kind: str) -> Iterator[Document]:
        """The objects of a kind."""
        return (found for found in self.objects if found["kind"] == kind)

    def one(self, kind: str, name: str = NAME) -> Document:
        """The object of a kind and name."""
        (found,) = (item for item in self.all(kind) if item["metadata"]["name"] == name)
        return found

    def pod(self, name: str = NAME) -> Document:
        """The pod of a Deployment, as its template has it."""
        spec: Document = self.one("Deployment", name)["spec"]["template"]["spec"]
        return spec

    def container(self, name: str = NAME) -> Document:
        """The only container of a Deployment's pod."""
        (container,) = self.pod(name)["containers"]
        return dict(container)

    def env(self, name: str = NAME) -> dict[str, str]:
        """The environment of that container, its Secrets and fields resolved."""
        entries = self.container(name).get("env", [])
        values = {entry["name"]: _value_of(entry) for entry in entries}
        assert len(values) == len(entries), "a variable is given twice"
        return values


def _value_of(entry: Document) -> str:
    if "value" in entry:
        assert isinstance(entry["value"], str), entry
        return str(entry["value"])
    source = entry["valueFrom"]
    if "secretKeyRef" in source:
        return SECRETS[source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]]
    return {"status.podIP": "10.1.2.3", "metadata.name": "ace-0"}[source["fieldRef"]["fieldPath"]]


def render(values: Document | None = None) -> Rendered:
    """Render with `values` over the chart's own.

    Raises:
        helm_python.HelmError: They are refused.
    """
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render(values or {}, name=RELEASE, namespace=NAMESPACE)
    notes = next(text for path, text in texts.items() if path.endswith("NOTES.txt"))
    manifests = [text for path, text in sorted(texts.items()) if path.endswith(".yaml")]
    found = [document for text in manifests for document in yaml.safe_load_all(text) if document]
    return Rendered(tuple(found), notes)
