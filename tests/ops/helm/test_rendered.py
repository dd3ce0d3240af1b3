"""What the chart makes of each set of values."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import helm_python
import httpx
import jsonschema
import kubernetes_validate
import pytest
import yaml

import gateway
from draftrunner.__main__ import _parser as draft_side_parser
from draftrunner.service import create_app as create_runner
from gateway.fleet.file import load_fleet
from gateway.policy.load import load_policy
from gateway.settings import Settings
from tests.ops.helm.chart import CHART, NAME, Document, Rendered, render
from tests.ops.helm.value_sets import EVERYTHING, FLEET, POLICY, VALUE_SETS

pytestmark = pytest.mark.ops

KUBERNETES = ("1.25", "1.31", "1.37")

SERVICE_MONITOR = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "spec": {
            "type": "object",
            "required": ["selector", "endpoints"],
            "additionalProperties": False,
            "properties": {
                "selector": {"type": "object", "required": ["matchLabels"]},
                "endpoints": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "port": {"type": "string"},
                            "path": {"type": "string"},
                            "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
                        },
                    },
                },
            },
        },
    },
}
"""What we use of the Prometheus operator's type, whose own schema is not in Kubernetes."""


@pytest.fixture(scope="module", params=list(VALUE_SETS.values()), ids=list(VALUE_SETS))
def values(request: pytest.FixtureRequest) -> Document:
    given: Document = request.param
    return given


@pytest.fixture(scope="module")
def rendered(values: Document) -> Rendered:
    return render(values)


def settings_of(env: dict[str, str]) -> Settings:
    """What the gateway reads from an environment."""
    return Settings.load(env)


def gateway_of(rendered: Rendered) -> str:
    """The name of the gateway's Deployment."""
    (found,) = (
        item["metadata"]["name"]
        for item in rendered.all("Deployment")
        if item["metadata"]["labels"]["app.kubernetes.io/component"] == "gateway"
    )
    return str(found)


def test_helm_lint_finds_nothing(values: Document) -> None:
    report = helm_python.lint(CHART, values, strict=True)
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_one_that_kubernetes_takes(rendered: Rendered, version: str) -> None:
    for item in rendered.objects:
        if item["kind"] == "ServiceMonitor":
            jsonschema.validate(item, SERVICE_MONITOR)
        else:
            kubernetes_validate.validate(item, version, strict=True)


def test_no_two_objects_have_one_name(rendered: Rendered) -> None:
    names = [(item["kind"], item["metadata"]["name"]) for item in rendered.objects]
    assert len(set(names)) == len(names)


def test_selectors_find_the_pods_they_are_for_and_no_others(rendered: Rendered) -> None:
    pods = [item["spec"]["template"]["metadata"]["labels"] for item in rendered.all("Deployment")]
    for item in rendered.objects:
        spec = item.get("spec", {})
        selector = spec.get("podSelector", spec.get("selector"))
        if selector is None or item["kind"] == "ServiceMonitor":
            continue
        wanted = selector.get("matchLabels", selector)
        found = [labels for labels in pods if wanted.items() <= labels.items()]
        assert len(found) == 1, f"{item['kind']} {item['metadata']['name']} finds {len(found)} kinds of pods"


def test_the_gateway_takes_the_rendered_environment(rendered: Rendered) -> None:
    settings = settings_of(rendered.env(gateway_of(rendered)))
    ports = {
        port["name"]: port["containerPort"] for port in rendered.container(gateway_of(rendered))["ports"]
    }
    assert ports == {"http": settings.port, "operations": settings.operations_port}
    assert settings.admin_token == "ace-admin-token-of-the-chart"
    assert settings.data_dir == Path("/var/lib/ace")


def test_every_variable_is_a_string(rendered: Rendered) -> None:
    for item in rendered.all("Deployment"):
        for entry in item["spec"]["template"]["spec"]["containers"][0].get("env", []):
            assert isinstance(entry.get("value", ""), str)
            assert not re.search(r"\de\+\d", entry.get("value", "")), entry


def test_no_container_may_do_more_than_it_needs(rendered: Rendered) -> None:
    for item in rendered.all("Deployment"):
        pod = item["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            writable = {
                mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")
            }
            assert writable <= {"/tmp", "/var/lib/ace", "/var/cache/ace"}


def test_every_mount_has_its_volume_and_none_is_a_sub_path(rendered: Rendered) -> None:
    for item in rendered.all("Deployment"):
        pod = item["spec"]["template"]["spec"]
        mounts = [mount for container in pod["containers"] for mount in container["volumeMounts"]]
        assert {mount["name"] for mount in mounts} == {volume["name"] for volume in pod["volumes"]}
        assert not any("subPath" in mount for mount in mounts)


def test_probes_ask_where_no_key_is_needed(rendered: Rendered) -> None:
    container = rendered.container(gateway_of(rendered))
    asked = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert asked == {
        "startupProbe": {"path": "/healthz", "port": "operations"},
        "livenessProbe": {"path": "/healthz", "port": "operations"},
        "readinessProbe": {"path": "/readyz", "port": "operations"},
    }


def test_the_pod_is_given_longer_than_its_drain_takes(rendered: Rendered) -> None:
    settings = settings_of(rendered.env(gateway_of(rendered)))
    grace = rendered.pod(gateway_of(rendered))["terminationGracePeriodSeconds"]
    assert grace >= settings.drain_delay_s + settings.drain_timeout_s + 10


def test_no_secret_is_made_or_shown(rendered: Rendered) -> None:
    assert list(rendered.all("Secret")) == []
    assert "token-of-the-chart" not in str(rendered.objects) + rendered.notes


def test_metrics_are_on_no_service_that_has_the_api(rendered: Rendered) -> None:
    for service in rendered.all("Service"):
        targets = {port["targetPort"] for port in service["spec"]["ports"]}
        assert targets in ({"http"}, {"operations"})
        if targets == {"operations"}:
            assert service["spec"]["type"] == "ClusterIP"


def test_whole_numbers_are_whole_however_they_are_given() -> None:
    by_yaml = yaml.safe_load("gateway: {settings: {maxBodyBytes: 33554432, retentionDays: 7.5}, workers: 3}")
    by_json: dict[str, Any] = {
        "gateway": {"settings": {"maxBodyBytes": 33554432.0, "retentionDays": 7.5}, "workers": 3.0}
    }
    for values in (by_yaml, by_json):
        env = render(values).env()
        assert env["ACE_MAX_BODY_BYTES"] == "33554432"
        assert env["ACE_WORKERS"] == "3"
        assert env["ACE_RETENTION_DAYS"] == "7.5"
        assert settings_of(env).max_body_bytes == 33554432


def test_what_is_not_given_is_the_gateways_own_default() -> None:
    env = render().env()
    assert set(env) == {
        *("ACE_HOST", "ACE_PORT", "ACE_OPERATIONS_PORT", "ACE_WORKERS", "ACE_DATA_DIR"),
        *("ACE_DRAIN_DELAY_S", "ACE_DRAIN_TIMEOUT_S", "ACE_ADMIN_TOKEN", "ACE_RUNNER_TOKEN"),
    }
    settings = settings_of(env)
    default = Settings(data_dir=Path("/"))
    assert dataclasses.replace(
        settings, **{name: getattr(default, name) for name in ("data_dir", "admin_token", "runner_token")}
    ) == dataclasses.replace(
        default, host="0.0.0.0", operations_port=8081, drain_delay_s=10.0, drain_timeout_s=300.0
    )


def test_large_numbers_given_as_json_arrive_as_they_are() -> None:
    env = render(VALUE_SETS["by JSON"]).env()
    assert (env["ACE_RETENTION_ROWS"], env["ACE_SHADOW_QUEUE"]) == ("100000000", "100000")
    assert (env["ACE_DRAIN_DELAY_S"], env["ACE_DRAIN_TIMEOUT_S"]) == ("2.5", "86400")
    runner = render(VALUE_SETS["by JSON"]).container(f"{NAME}-draft-runner")
    assert runner["args"][-2:] == ["--draft-model=/models/draft", "--draft-memory=6.5"]


@pytest.mark.parametrize(
    "text",
    [
        POLICY,
        "version: 1\r\ndefaults: {mode: off}\r\n",
        "version: 1\ndefaults: {mode: off}\n\n\n",
        '# {{ fail "no" }} {{`x`}} $(HOME) \\ "quoted" <a&b> ü\nversion: 1\n',
        "  \nversion: 1\n",
    ],
)
def test_the_policy_arrives_as_it_was_written(text: str, tmp_path: Path) -> None:
    rendered = render({"policy": {"text": text}})
    assert rendered.one("ConfigMap", f"{NAME}-policy")["data"] == {"policy.yaml": text}
    assert rendered.env()["ACE_POLICY_PATH"] == "/etc/ace/policy/policy.yaml"
    file = tmp_path / "policy.yaml"
    file.write_bytes(text.encode())
    assert load_policy(file).policy.defaults.mode == "off"


def test_a_policy_of_ones_own_is_mounted_as_a_directory() -> None:
    rendered = render({"policy": {"existingConfigMap": "mine"}})
    assert list(rendered.all("ConfigMap")) == []
    assert {"name": "policy", "configMap": {"name": "mine"}} in rendered.pod()["volumes"]
    assert {"name": "policy", "mountPath": "/etc/ace/policy", "readOnly": True} in rendered.container()[
        "volumeMounts"
    ]


def test_the_kill_switch_need_not_exist_when_the_pod_starts() -> None:
    rendered = render({"killSwitch": {"configMap": "stop"}})
    assert {"name": "kill", "configMap": {"name": "stop", "optional": True}} in rendered.pod()["volumes"]
    assert rendered.env()["ACE_KILL_FILE"] == "/etc/ace/kill/kill"


def test_a_fleet_is_mounted_like_the_policy_and_loads(tmp_path: Path) -> None:
    rendered = render({"fleet": {"text": FLEET}})
    data = rendered.one("ConfigMap", f"{NAME}-fleet")["data"]
    assert data == {"fleet.yaml": FLEET}
    assert rendered.env()["ACE_FLEET_PATH"] == "/etc/ace/fleet/fleet.yaml"
    file = tmp_path / "fleet.yaml"
    file.write_text(data["fleet.yaml"])
    assert [backend.name for backend in load_fleet(file).declarations] == ["vllm"]


def test_credentials_are_references() -> None:
    rendered = render({"backendCredentials": EVERYTHING["backendCredentials"]})
    entries = {entry["name"]: entry for entry in rendered.container()["env"]}
    assert entries["VLLM_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "model-servers", "key": "vllm"}}
    assert {"name": "credentials", "secret": {"secretName": "model-servers"}} in rendered.pod()["volumes"]


def test_sqlite_pods_follow_one_another_and_postgresql_pods_overlap() -> None:
    assert render().one("Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    several = render(VALUE_SETS["three replicas on PostgreSQL that scale"]).one("Deployment")["spec"]
    assert several["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    assert "replicas" not in several  # the autoscaler's to say


def test_the_volume_of_a_store_outlives_the_release() -> None:
    rendered = render(VALUE_SETS["four workers and a volume"])
    claim = rendered.one("PersistentVolumeClaim", f"{NAME}-data")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"]["resources"] == {"requests": {"storage": "10Gi"}}
    assert {"name": "data", "persistentVolumeClaim": {"claimName": f"{NAME}-data"}} in rendered.pod()[
        "volumes"
    ]


def runner_of(**values: Any) -> Rendered:
    """A rendering with a draft runner."""
    return render({"draftRunner": {"enabled": True, **values}})


def test_a_runner_tells_the_gateway_an_address_that_pods_can_reach() -> None:
    container = runner_of().container(f"{NAME}-draft-runner")
    assert container["args"] == [
        *("draft-runner", "--host=$(POD_IP)", "--port=8090", f"--gateway=http://{NAME}:80", "--device=cpu")
    ]
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in container["env"]


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_the_draft_sides_commands_take_what_they_are_given(values: Document) -> None:
    rendered = render(values)
    for item in rendered.all("Deployment"):
        (container,) = item["spec"]["template"]["spec"]["containers"]
        if container["args"][0] in ("draft-runner", "embedded-backend"):
            asked = draft_side_parser().parse_args(
                [argument.replace("$(POD_IP)", "10.1.2.3") for argument in container["args"]]
            )
            assert asked.port == container["ports"][0]["containerPort"]


async def test_a_runners_probes_need_no_token() -> None:
    container = runner_of().container(f"{NAME}-draft-runner")
    app = create_runner(token="t" * 20, version="1", drafters={})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://runner") as client:
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert (await client.get(container[name]["httpGet"]["path"])).status_code == 200


def test_a_runner_and_the_gateway_hold_the_same_token() -> None:
    rendered = runner_of()
    runner = rendered.env(f"{NAME}-draft-runner")["ACE_RUNNER_TOKEN"]
    assert runner == rendered.env()["ACE_RUNNER_TOKEN"] == "ace-runner-token-of-the-chart"


def test_a_runner_on_cpus_asks_for_no_gpu() -> None:
    rendered = runner_of()
    pod, container = rendered.pod(f"{NAME}-draft-runner"), rendered.container(f"{NAME}-draft-runner")
    assert "runtimeClassName" not in pod
    assert "nvidia" not in str(container).lower()
    assert container["image"] == "ace-draft-runner:0.1.0"


def test_a_runner_with_its_own_gpu_asks_for_it_on_the_targets_nodes() -> None:
    rendered = render(VALUE_SETS["a draft runner with a GPU of its own"])
    pod, container = rendered.pod(f"{NAME}-draft-runner"), rendered.container(f"{NAME}-draft-runner")
    assert container["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": "2"}
    assert pod["nodeSelector"] == {"gpu.example.org/class": "h200"}
    assert container["image"] == "ace-draft-runner:0.1.0-cuda"
    assert "--device=cuda" in container["args"]
    assert "RISK" not in rendered.notes


def test_a_runner_on_the_targets_gpu_asks_for_none_and_the_risk_is_named() -> None:
    rendered = render(VALUE_SETS["a draft runner on the target's GPU"])
    pod, env = rendered.pod(f"{NAME}-draft-runner"), rendered.env(f"{NAME}-draft-runner")
    assert "nvidia.com/gpu" not in str(rendered.container(f"{NAME}-draft-runner")["resources"])
    assert pod["runtimeClassName"] == "nvidia"
    assert env["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "10"
    assert "The target's latency rises while it works" in rendered.notes
    assert "shadow.max_tokens_per_minute" in rendered.notes


def test_the_network_policy_lets_each_part_reach_what_it_needs() -> None:
    rendered = render(EVERYTHING)
    gateway = rendered.one("NetworkPolicy")["spec"]
    ports = [port["port"] for rule in gateway["egress"] for port in rule["ports"]]
    assert ports == [53, 53, 8090, 8100, 8000, 5432, 4318]
    assert [rule["ports"][0]["port"] for rule in gateway["ingress"]] == [8080, 8080, 8081]
    runner = rendered.one("NetworkPolicy", f"{NAME}-draft-runner")["spec"]
    assert [port["port"] for rule in runner["egress"] for port in rule["ports"]] == [53, 53, 8080]
    demo = rendered.one("NetworkPolicy", f"{NAME}-demo-backend")["spec"]
    assert demo["egress"] == []


def test_no_list_of_sources_means_that_everybody_may_come() -> None:
    rules = render(VALUE_SETS["a first try with the demo backend"]).one("NetworkPolicy")["spec"]["ingress"]
    assert all("from" not in rule for rule in rules)


def test_the_service_monitor_finds_the_operations_service() -> None:
    rendered = render(EVERYTHING)
    monitor = rendered.one("ServiceMonitor")["spec"]
    service = rendered.one("Service", f"{NAME}-operations")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    api = rendered.one("Service")["metadata"]["labels"]
    assert not monitor["selector"]["matchLabels"].items() <= api.items()


def test_an_ingress_publishes_the_openai_api_and_not_the_operators() -> None:
    ingress = render(EVERYTHING).one("Ingress")["spec"]
    assert [path["path"] for path in ingress["rules"][0]["http"]["paths"]] == ["/v1"]


def test_a_store_in_the_pod_is_warned_of() -> None:
    warning = "Keys, backends and records end with the pod."
    assert warning in render().notes
    assert warning not in render(VALUE_SETS["four workers and a volume"]).notes


def test_the_chart_is_of_this_version_of_the_gateway() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == gateway.__version__


def test_the_examples_of_the_charts_page_render() -> None:
    page = (CHART.parent / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    rendered = render(yaml.safe_load(example))
    assert rendered.one("Deployment")["spec"]["replicas"] == 3
    (first_try,) = re.findall(r"^helm install ace helm/ace-gateway (.*)$", page, re.M)
    for setting in re.findall(r"--set (\S+)", first_try):
        part, value = setting.removesuffix(".enabled=true"), {"enabled": True}
        assert list(render({part: value}).all("Deployment")) != list(render().all("Deployment"))


def test_every_value_that_is_allowed_is_shown_with_its_default() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    del schema["properties"]["global"]  # Helm's own
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert _leaves(schema) == _paths(values, schema)


def _leaves(schema: Document, path: str = "") -> set[str]:
    """Paths of the values that a schema names."""
    if "properties" not in schema or path.endswith(".resources"):
        return {path}
    return {leaf for key, inner in schema["properties"].items() for leaf in _leaves(inner, f"{path}.{key}")}


def _paths(values: Any, schema: Document, path: str = "") -> set[str]:
    """Paths of the values that there are, as deep as the schema names them."""
    if "properties" not in schema or path.endswith(".resources"):
        return {path}
    return {
        leaf for key in values for leaf in _paths(values[key], schema["properties"][key], f"{path}.{key}")
    }
