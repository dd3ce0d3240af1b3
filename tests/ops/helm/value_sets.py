"""Values as different sites would give them, each of which must render to what a cluster takes."""

from __future__ import annotations

import json
from typing import Any

POLICY = """\
# {{ .Values.secrets }} and {{ template }} are no concern of Helm's here
version: 1
defaults: {mode: off}
rules:
  - name: rag
    match: {workload: [rag], tenant: "{{ 0123 }}"}
    mode: shadow
    draft: ngram
"""

ON_GPU_NODES = {"nodeSelector": {"gpu.example.org/class": "h200"}}

POSTGRESQL = {"kind": "postgresql", "url": {"existingSecret": "database"}}

BY_JSON = json.loads(
    """{
      "gateway": {"port": 8080, "operationsPort": 9090, "workers": 2,
                  "settings": {"maxBodyBytes": 33554432, "retentionRows": 100000000, "retentionDays": 0.5,
                               "firstByteTimeoutS": 86400, "shadowQueue": 100000},
                  "drain": {"delaySeconds": 2.5, "timeoutSeconds": 86400},
                  "tolerations": [], "extraEnv": [], "resources": {}},
      "draftRunner": {"enabled": true, "draftModel": {"path": "/models/draft", "memoryGiB": 6.5}},
      "backendCredentials": {"env": []}
    }"""
)

FLEET = """\
version: 1
backends:
  - {name: vllm, url: "http://vllm.models.svc:8000", discovery: dns, credential: "env:VLLM_KEY"}
"""

EVERYTHING: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry"}],
    "store": POSTGRESQL,
    "policy": {"text": POLICY},
    "fleet": {"text": FLEET},
    "killSwitch": {"configMap": "ace-kill"},
    "backendCredentials": {
        "env": [{"name": "VLLM_KEY", "secret": "model-servers", "key": "vllm"}],
        "secret": "model-servers",
    },
    "telemetry": {"otlpEndpoint": "http://collector.monitoring:4318"},
    "gateway": {
        "replicas": 3,
        "workers": 2,
        "settings": {"maxBodyBytes": 67108864, "connectTimeoutS": 2.5},
        "extraEnv": [{"name": "OTEL_TRACES_SAMPLER", "value": "parentbased_traceidratio"}],
        "extraVolumes": [{"name": "tokenizers", "persistentVolumeClaim": {"claimName": "tokenizers"}}],
        "extraVolumeMounts": [{"name": "tokenizers", "mountPath": "/tokenizers", "readOnly": True}],
        "service": {"type": "LoadBalancer", "annotations": {"example.org/internal": "true"}},
        "podAnnotations": {"example.org/team": "inference"},
        "podLabels": {"team": "inference"},
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "pool", "operator": "Equal", "value": "cpu", "effect": "NoSchedule"}],
        "priorityClassName": "serving",
    },
    "draftRunner": {
        "enabled": True,
        "gpu": "shared",
        "shared": {
            "riskAccepted": True,
            "mps": {"activeThreadPercentage": 20, "pinnedDeviceMemoryLimit": "0=4G"},
        },
        **ON_GPU_NODES,
    },
    "demoBackend": {"enabled": True},
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {
        "enabled": True,
        "ingress": {
            "from": [{"namespaceSelector": {"matchLabels": {"team": "apps"}}}],
            "operationsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        },
        "egress": {
            "backends": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 8000}]}],
            "store": [{"to": [{"podSelector": {"matchLabels": {"app": "db"}}}], "ports": [{"port": 5432}]}],
            "otlp": [{"to": [{"namespaceSelector": {}}], "ports": [{"port": 4318}]}],
        },
    },
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "llm.example.org",
        "tlsSecret": "llm-tls",
        "annotations": {"nginx.ingress.kubernetes.io/proxy-buffering": "off"},
    },
}

VALUE_SETS: dict[str, dict[str, Any]] = {
    "default": {},
    "three replicas on PostgreSQL that scale": {
        "store": POSTGRESQL,
        "gateway": {"replicas": 3},
        "autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 9},
    },
    "four workers and a volume": {
        "gateway": {"workers": 4},
        "policy": {"text": POLICY},
        "store": {"persistence": {"enabled": True, "size": "10Gi", "storageClassName": "fast"}},
    },
    "a draft runner on CPUs": {"draftRunner": {"enabled": True, "replicas": 2}},
    "a draft runner with a GPU of its own": {
        "draftRunner": {
            "enabled": True,
            "gpu": "own",
            "own": {"count": 2},
            "draftModel": {"path": "/models/draft", "memoryGiB": 20},
            "extraVolumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
            "extraVolumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            **ON_GPU_NODES,
        }
    },
    "a draft runner on the target's GPU": {
        "draftRunner": {
            "enabled": True,
            "gpu": "shared",
            "shared": {"riskAccepted": True, "mps": {"activeThreadPercentage": 10}},
            **ON_GPU_NODES,
        }
    },
    "a first try with the demo backend": {
        "demoBackend": {"enabled": True},
        "draftRunner": {"enabled": True},
        "policy": {"text": POLICY},
        "networkPolicy": {"enabled": True},
    },
    "everything": EVERYTHING,
    "air-gapped and small": {
        "fullnameOverride": "gate",
        "serviceAccount": {"create": False, "name": "inference"},
        "secrets": {"runnerTokenKey": ""},
        "pdb": {"enabled": False},
        "security": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
        "gateway": {
            "image": {"repository": "registry.internal:5000/mirror/ace-gateway", "tag": "0.1.0"},
            "topologySpread": {"enabled": False},
            "terminationGracePeriodSeconds": 600,
            "settings": {"maxBodyBytes": 1048576},
        },
        "policy": {"existingConfigMap": "my-policy"},
    },
    "by JSON": BY_JSON,
}
