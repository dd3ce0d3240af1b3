{{- define "ace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "ace.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "ace.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "ace.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* What selects the pods of a part: (list . "gateway") */ -}}
{{- define "ace.selector" -}}
app.kubernetes.io/name: {{ include "ace.name" (first .) }}
app.kubernetes.io/instance: {{ (first .).Release.Name | quote }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{- define "ace.labels" -}}
{{ include "ace.selector" . }}
app.kubernetes.io/version: {{ (first .).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (first .).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (first .).Chart.Name (first .).Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* A number as a string, whole ones without exponent: they reach templates as floats. */ -}}
{{- define "ace.number" -}}
{{- if eq (floor .) (float64 .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- define "ace.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "ace.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "ace.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.security.runAsUser }}
runAsUser: {{ int64 . }}
{{- end }}
{{- with .Values.security.runAsGroup }}
runAsGroup: {{ int64 . }}
{{- end }}
{{- with .Values.security.fsGroup }}
fsGroup: {{ int64 . }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "ace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "ace.policyConfigMap" -}}
{{- if .Values.policy.existingConfigMap }}{{ .Values.policy.existingConfigMap }}
{{- else if .Values.policy.text }}{{ include "ace.fullname" . }}-policy
{{- end }}
{{- end }}

{{- define "ace.fleetConfigMap" -}}
{{- if .Values.fleet.existingConfigMap }}{{ .Values.fleet.existingConfigMap }}
{{- else if .Values.fleet.text }}{{ include "ace.fullname" . }}-fleet
{{- end }}
{{- end }}

{{- define "ace.drainSeconds" -}}
{{- add (ceil .Values.gateway.drain.delaySeconds) (ceil .Values.gateway.drain.timeoutSeconds) }}
{{- end }}

{{- /* After the drain: the last answers to clients that read slowly, records to the store, spans. */ -}}
{{- define "ace.graceSeconds" -}}
{{- if .Values.gateway.terminationGracePeriodSeconds }}
{{- int64 .Values.gateway.terminationGracePeriodSeconds }}
{{- else }}
{{- add (include "ace.drainSeconds" . | int64) 20 }}
{{- end }}
{{- end }}

{{- define "ace.secretEnv" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret | quote }}
      key: {{ .key | quote }}
{{- end }}

{{- /* Everything the gateway is set by. Values are quoted: an unquoted number is no environment variable. */ -}}
{{- define "ace.gatewayEnv" -}}
{{- $gateway := .Values.gateway -}}
- name: ACE_HOST
  value: {{ $gateway.host | quote }}
- name: ACE_PORT
  value: {{ int64 $gateway.port | quote }}
- name: ACE_OPERATIONS_PORT
  value: {{ int64 $gateway.operationsPort | quote }}
- name: ACE_WORKERS
  value: {{ int64 $gateway.workers | quote }}
- name: ACE_DATA_DIR
  value: /var/lib/ace
- name: ACE_DRAIN_DELAY_S
  value: {{ include "ace.number" $gateway.drain.delaySeconds | quote }}
- name: ACE_DRAIN_TIMEOUT_S
  value: {{ include "ace.number" $gateway.drain.timeoutSeconds | quote }}
{{- range $key, $variable := dict
    "maxBodyBytes" "ACE_MAX_BODY_BYTES"
    "connectTimeoutS" "ACE_CONNECT_TIMEOUT_S"
    "firstByteTimeoutS" "ACE_FIRST_BYTE_TIMEOUT_S"
    "idleTimeoutS" "ACE_IDLE_TIMEOUT_S"
    "retentionDays" "ACE_RETENTION_DAYS"
    "retentionRows" "ACE_RETENTION_ROWS"
    "shadowQueue" "ACE_SHADOW_QUEUE" }}
{{- with index $gateway.settings $key }}
- name: {{ $variable }}
  value: {{ include "ace.number" . | quote }}
{{- end }}
{{- end }}
{{- if include "ace.policyConfigMap" . }}
- name: ACE_POLICY_PATH
  value: /etc/ace/policy/policy.yaml
{{- end }}
{{- if include "ace.fleetConfigMap" . }}
- name: ACE_FLEET_PATH
  value: /etc/ace/fleet/fleet.yaml
{{- end }}
{{- if .Values.killSwitch.configMap }}
- name: ACE_KILL_FILE
  value: /etc/ace/kill/kill
{{- end }}
{{ include "ace.secretEnv" (dict "name" "ACE_ADMIN_TOKEN" "secret" .Values.secrets.existingSecret "key" .Values.secrets.adminTokenKey) }}
{{- with .Values.secrets.runnerTokenKey }}
{{ include "ace.secretEnv" (dict "name" "ACE_RUNNER_TOKEN" "secret" $.Values.secrets.existingSecret "key" .) }}
{{- end }}
{{- if eq .Values.store.kind "postgresql" }}
{{ include "ace.secretEnv" (dict "name" "ACE_STORE_URL" "secret" .Values.store.url.existingSecret "key" .Values.store.url.key) }}
{{- end }}
{{- range .Values.backendCredentials.env }}
{{ include "ace.secretEnv" . }}
{{- end }}
{{- with .Values.telemetry.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: OTEL_RESOURCE_ATTRIBUTES
  value: service.instance.id=$(POD_NAME)
{{- end }}
{{- with $gateway.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "ace.image" -}}
{{ .image.repository }}:{{ default .default .image.tag }}
{{- end }}
