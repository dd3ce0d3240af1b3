"""Values that would render and not work, or not mean what they say, are refused with a sentence."""

from __future__ import annotations

from typing import Any

import helm_python
import pytest

from tests.ops.helm.chart import render
from tests.ops.helm.value_sets import EVERYTHING, ON_GPU_NODES, POSTGRESQL

pytestmark = pytest.mark.ops


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gateway": {"replicas": 2}}, "gateway.replicas is 2 and store.kind is sqlite"),
        ({"autoscaling": {"enabled": True}}, "autoscaling.enabled needs store.kind: postgresql"),
        (
            {"gateway": {"strategy": {"type": "RollingUpdate"}}},
            "lets an old and a new pod have the SQLite file open at the same time",
        ),
        ({"store": {"kind": "postgresql"}}, "store.url.existingSecret is empty"),
        (
            {"store": {**POSTGRESQL, "persistence": {"enabled": True}}},
            "store.persistence is for SQLite",
        ),
        (
            {"draftRunner": {"enabled": True}, "secrets": {"runnerTokenKey": ""}},
            "the runner and every gateway replica must hold the same token",
        ),
        (
            {"store": POSTGRESQL, "gateway": {"replicas": 2}, "secrets": {"runnerTokenKey": ""}},
            "each replica makes a runner token of its own",
        ),
        (
            {"gateway": {"terminationGracePeriodSeconds": 310}},
            "gateway.terminationGracePeriodSeconds is 310 and the drain may take 310 s",
        ),
        ({"gateway": {"port": 8081}}, "gateway.port and gateway.operationsPort are both 8081"),
        (
            {"policy": {"text": "version: 1\n", "existingConfigMap": "mine"}},
            "policy.text and policy.existingConfigMap are both given",
        ),
        (
            {"fleet": {"text": "version: 1\n", "existingConfigMap": "mine"}},
            "fleet.text and fleet.existingConfigMap are both given",
        ),
        (
            {"draftRunner": {"enabled": True, "gpu": "own"}},
            "draftRunner.gpu is own, and neither draftRunner.nodeSelector nor draftRunner.affinity",
        ),
        (
            {"draftRunner": {"enabled": True, "gpu": "shared", **ON_GPU_NODES}},
            "the target's latency rises while the runner works",
        ),
        ({"networkPolicy": {"enabled": True}}, "cuts the gateway off from every model server"),
        (
            {
                "networkPolicy": {**EVERYTHING["networkPolicy"], "egress": {"backends": [{}]}},
                "store": POSTGRESQL,
            },
            "needs networkPolicy.egress.store",
        ),
        (
            {
                "networkPolicy": {"enabled": True, "egress": {"backends": [{}]}},
                "telemetry": {"otlpEndpoint": "http://c:4318"},
            },
            "needs networkPolicy.egress.otlp",
        ),
        ({"ingress": {"enabled": True}}, "ingress.enabled needs ingress.host"),
        (
            {"store": POSTGRESQL, "autoscaling": {"enabled": True, "minReplicas": 7}},
            "autoscaling.minReplicas is 7, more than autoscaling.maxReplicas, which is 6",
        ),
        (
            {
                "store": POSTGRESQL,
                "autoscaling": {"enabled": True},
                "gateway": {"resources": {"requests": {"cpu": None}}},
            },
            "gateway.resources.requests.cpu, which is not set",
        ),
        (
            {"gateway": {"extraEnv": [{"name": "ACE_ADMIN_TOKEN", "value": "a-token-in-the-open"}]}},
            "extraEnv gives ACE_ADMIN_TOKEN as a value",
        ),
        (
            {"gateway": {"extraEnv": [{"name": "ACE_WORKERS", "value": "4"}]}},
            "gives ACE_WORKERS, which is set already",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm_python.HelmError) as caught:
        render(values)
    assert said in str(caught.value)
    assert "a-token-in-the-open" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"draftRunner": {"enabled": "false"}}, "/draftRunner/enabled"),
        ({"gateway": {"port": "8080"}}, "/gateway/port"),
        ({"gateway": {"workers": 1.5}}, "/gateway/workers"),
        ({"gateway": {"workers": 65}}, "/gateway/workers"),
        ({"gateway": {"settings": {"maxBodyByte": 1024}}}, "maxBodyByte"),
        ({"gateway": {"extraEnv": [{"name": "RATE", "value": 0.5}]}}, "/gateway/extraEnv/0/value"),
        ({"secrets": {"adminTokenKey": 123}}, "/secrets/adminTokenKey"),  # what YAML makes of 0173
        ({"secrets": {"adminToken": "a-token-in-the-open"}}, "adminToken"),
        ({"apiKey": 83}, "apiKey"),  # 0123
        ({"store": {"kind": "mysql"}}, "/store/kind"),
        ({"store": {"url": "postgresql://u:p@h/d"}}, "/store/url"),
        ({"draftRunner": {"gpu": "off"}}, "/draftRunner/gpu"),
        ({"draftRunner": {"gpu": False}}, "/draftRunner/gpu"),
        ({"backendCredentials": {"env": [{"name": "ACE_KEY", "secret": "s", "key": "k"}]}}, "env/0/name"),
        ({"backendCredentials": {"env": [{"name": "KEY", "value": "sk-1"}]}}, "env/0"),
        ({"policy": {"text": {"version": 1}}}, "/policy/text"),
        ({"gateway": {"nodeSelector": {"gpu": True}}}, "/gateway/nodeSelector/gpu"),
        ({"gateway": {"image": {"repository": "ace-gateway:latest"}}}, "/gateway/image/repository"),
    ],
)
def test_values_of_another_shape_are_refused_by_the_schema(values: dict[str, Any], place: str) -> None:
    with pytest.raises(helm_python.HelmError) as caught:
        render(values)
    assert place in str(caught.value)
    assert "schema" in str(caught.value)
    assert "a-token-in-the-open" not in str(caught.value)
