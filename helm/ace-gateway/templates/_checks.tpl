{{- /* What would render and not work, refused with a sentence. */ -}}
{{- define "ace.checks" -}}
{{- $v := .Values -}}
{{- $several := or $v.autoscaling.enabled (gt (int $v.gateway.replicas) 1) -}}
{{- if and (eq $v.store.kind "sqlite") $v.autoscaling.enabled }}
{{- fail "autoscaling.enabled needs store.kind: postgresql. SQLite is one file of one pod: replicas would not see each other's keys and backends." }}
{{- end }}
{{- if and (eq $v.store.kind "sqlite") $several }}
{{- fail (printf "gateway.replicas is %d and store.kind is sqlite, which is one file of one pod. Set store.kind: postgresql, or gateway.replicas: 1." (int $v.gateway.replicas)) }}
{{- end }}
{{- if and (eq $v.store.kind "sqlite") $v.gateway.strategy (ne (dig "type" "" $v.gateway.strategy) "Recreate") }}
{{- fail "gateway.strategy lets an old and a new pod have the SQLite file open at the same time. Use Recreate, or store.kind: postgresql." }}
{{- end }}
{{- if and (eq $v.store.kind "postgresql") (not $v.store.url.existingSecret) }}
{{- fail "store.kind is postgresql and store.url.existingSecret is empty. Name the Secret that holds the URL under store.url.key." }}
{{- end }}
{{- if and (eq $v.store.kind "postgresql") $v.store.persistence.enabled }}
{{- fail "store.persistence is for SQLite: with store.kind postgresql nothing in a pod is worth keeping. Set store.persistence.enabled: false." }}
{{- end }}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) }}
{{- fail (printf "autoscaling.minReplicas is %d, more than autoscaling.maxReplicas, which is %d." (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) }}
{{- end }}
{{- if and $v.autoscaling.enabled (not (dig "requests" "cpu" "" $v.gateway.resources)) }}
{{- fail "autoscaling measures CPU use against gateway.resources.requests.cpu, which is not set." }}
{{- end }}
{{- if and $v.draftRunner.enabled (not $v.secrets.runnerTokenKey) }}
{{- fail "draftRunner.enabled needs secrets.runnerTokenKey: the runner and every gateway replica must hold the same token." }}
{{- end }}
{{- if and $several (not $v.secrets.runnerTokenKey) }}
{{- fail "With several gateway replicas secrets.runnerTokenKey must be set: otherwise each replica makes a runner token of its own, and a runner could join only one." }}
{{- end }}
{{- if le (include "ace.graceSeconds" . | int64) (include "ace.drainSeconds" . | int64) }}
{{- fail (printf "gateway.terminationGracePeriodSeconds is %s and the drain may take %s s (gateway.drain.delaySeconds and timeoutSeconds together), so Kubernetes would kill streams and lose records. Give more grace, or leave it null." (include "ace.graceSeconds" .) (include "ace.drainSeconds" .)) }}
{{- end }}
{{- if eq (int $v.gateway.port) (int $v.gateway.operationsPort) }}
{{- fail (printf "gateway.port and gateway.operationsPort are both %d; they are two ports." (int $v.gateway.port)) }}
{{- end }}
{{- if and $v.policy.text $v.policy.existingConfigMap }}
{{- fail "policy.text and policy.existingConfigMap are both given. One policy is in force: give one of them." }}
{{- end }}
{{- if and $v.fleet.text $v.fleet.existingConfigMap }}
{{- fail "fleet.text and fleet.existingConfigMap are both given. Give one of them." }}
{{- end }}
{{- if and $v.draftRunner.enabled (ne $v.draftRunner.gpu "none") (not $v.draftRunner.nodeSelector) (not $v.draftRunner.affinity) }}
{{- fail (printf "draftRunner.gpu is %s, and neither draftRunner.nodeSelector nor draftRunner.affinity says which nodes. Name the node class of the target: on another one its speeds mean nothing." $v.draftRunner.gpu) }}
{{- end }}
{{- if and $v.draftRunner.enabled (eq $v.draftRunner.gpu "shared") (not $v.draftRunner.shared.riskAccepted) }}
{{- fail "draftRunner.gpu: shared lets the runner take time and memory from the target's own GPU: the target's latency rises while the runner works, and memory that both want may fail the target. Set draftRunner.shared.riskAccepted: true if whoever runs the target agrees." }}
{{- end }}
{{- if and $v.networkPolicy.enabled (not $v.networkPolicy.egress.backends) (not $v.demoBackend.enabled) }}
{{- fail "networkPolicy.enabled with an empty networkPolicy.egress.backends cuts the gateway off from every model server. List the rules to yours." }}
{{- end }}
{{- if and $v.networkPolicy.enabled (eq $v.store.kind "postgresql") (not $v.networkPolicy.egress.store) }}
{{- fail "networkPolicy.enabled with store.kind postgresql needs networkPolicy.egress.store, the rules to the database." }}
{{- end }}
{{- if and $v.networkPolicy.enabled $v.telemetry.otlpEndpoint (not $v.networkPolicy.egress.otlp) }}
{{- fail "networkPolicy.enabled with telemetry.otlpEndpoint needs networkPolicy.egress.otlp, the rules to the collector." }}
{{- end }}
{{- if and $v.ingress.enabled (not $v.ingress.host) }}
{{- fail "ingress.enabled needs ingress.host." }}
{{- end }}
{{- $secret := list "ACE_ADMIN_TOKEN" "ACE_RUNNER_TOKEN" "ACE_STORE_URL" }}
{{- range concat $v.gateway.extraEnv $v.draftRunner.extraEnv }}
{{- if and (has .name $secret) (hasKey . "value") }}
{{- fail (printf "extraEnv gives %s as a value, which everybody who may read the release can see. Name a Secret, see `secrets` and `store.url`." .name) }}
{{- end }}
{{- end }}
{{- $seen := dict }}
{{- range include "ace.gatewayEnv" . | fromYamlArray }}
{{- if hasKey $seen .name }}
{{- fail (printf "gateway.extraEnv or backendCredentials.env gives %s, which is set already. Use the value that sets it, or another name." .name) }}
{{- end }}
{{- $_ := set $seen .name true }}
{{- end }}
{{- end }}
