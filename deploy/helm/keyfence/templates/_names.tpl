{{- define "keyfence.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "keyfence.fullname" -}}
{{- $name := include "keyfence.name" . -}}
{{- if contains $name .Release.Name -}}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "keyfence.selector" -}}
app.kubernetes.io/name: {{ include "keyfence.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "keyfence.labels" -}}
{{ include "keyfence.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{- define "keyfence.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}
{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "keyfence.policyMap" -}}
{{- .Values.policy.existingConfigMap | default (printf "%s-policy" (include "keyfence.fullname" .)) -}}
{{- end -}}

{{/* The port of an address: ":6380", "0.0.0.0:6380", "[::]:6380". */}}
{{- define "keyfence.port" -}}
{{- regexReplaceAll "^.*:" (toString .) "" -}}
{{- end -}}

{{/* The ports of the listeners of HOST:PORT, as JSON: unix sockets have none. */}}
{{- define "keyfence.ports" -}}
{{- $ports := list -}}
{{- range .Values.config.listeners -}}
{{- if not (hasPrefix "unix:" .listen) -}}{{- $ports = append $ports (int (include "keyfence.port" .listen)) -}}{{- end -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}

{{/* Faults of the values that their schema cannot express. */}}
{{- define "keyfence.check" -}}
{{- if not (or .Values.policy.files .Values.policy.existingConfigMap) -}}
{{- fail "keyfence: there is no policy; write --set-file 'policy.files.shop\\.yaml=shop.yaml', or name a ConfigMap in policy.existingConfigMap" -}}
{{- end -}}
{{- if and .Values.policy.files .Values.policy.existingConfigMap -}}
{{- fail "keyfence: policy.files and policy.existingConfigMap exclude each other; leave one out" -}}
{{- end -}}
{{- range $name, $_ := .Values.policy.files -}}
{{- if not (regexMatch "^[-_A-Za-z0-9][-._A-Za-z0-9]*[.]ya?ml$" $name) -}}
{{- fail (printf "keyfence: policy.files: %q is not the name of a policy's file; write NAME.yaml" $name) -}}
{{- end -}}
{{- end -}}
{{- if not .Values.config.upstream -}}
{{- fail "keyfence: config.upstream is missing; name your Redis: --set config.upstream=redis://redis:6379" -}}
{{- end -}}
{{- if not .Values.config.listeners -}}
{{- fail "keyfence: config.listeners is empty; name at least one address, such as {listen: \":6380\"}" -}}
{{- end -}}
{{- if or (not .Values.config.metrics) (eq (toString .Values.config.metrics) "none") -}}
{{- fail "keyfence: config.metrics is none; probes need it: write \":9465\"" -}}
{{- end -}}
{{- if and (eq .Values.reload "watch") (eq (toString .Values.config.admin) "none") -}}
{{- fail "keyfence: reload: watch needs config.admin; write \"127.0.0.1:9464\", or reload: restart" -}}
{{- end -}}
{{- range .Values.config.listeners -}}
{{- if and (eq $.Values.form "gateway") (regexMatch "^(127[.]|localhost:|\\[::1\\]:|unix:)" .listen) -}}
{{- fail (printf "keyfence: no other pod reaches the listener %s; write %q, or form: sidecar" .listen (printf ":%s" (include "keyfence.port" .listen))) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (not (dig "requests" "cpu" "" .Values.resources)) -}}
{{- fail "keyfence: autoscaling needs resources.requests.cpu, of which it takes a percentage" -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "keyfence: autoscaling.minReplicas is above autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and (eq .Values.form "sidecar") (not .Values.sidecar.containers) -}}
{{- fail "keyfence: form is sidecar, and sidecar.containers is empty; put the application's containers there" -}}
{{- end -}}
{{- if and (eq .Values.form "sidecar") .Values.networkPolicy.enabled (not .Values.networkPolicy.redis.podSelector) -}}
{{- fail "keyfence: of a sidecar, networkPolicy protects Redis' pods alone; name their labels in networkPolicy.redis.podSelector, or set networkPolicy.enabled: false" -}}
{{- end -}}
{{- if eq .Values.form "sidecar" -}}
{{- $admin := .Values.config.admin -}}
{{- $has_token := and (kindIs "map" $admin) (or (get $admin "token_file") (get $admin "tokens")) -}}
{{- if not (or $has_token (eq (toString $admin) "none")) -}}
{{- fail "keyfence: the application reaches the admin address of its sidecar, and without a token it may end enforcement; name one in config.admin.token_file, as values-sidecar.yaml does, or write config.admin: none and reload: restart" -}}
{{- end -}}
{{- end -}}
{{- if and (ne .Values.form "sidecar") .Values.sidecar.containers -}}
{{- fail "keyfence: sidecar.containers needs form: sidecar" -}}
{{- end -}}
{{- if and .Values.findings.existingClaim (or .Values.autoscaling.enabled (gt (int .Values.replicas) 1)) -}}
{{- fail "keyfence: several pods cannot share findings.existingClaim; set replicas: 1, or let config.findings name a PostgreSQL" -}}
{{- end -}}
{{- end -}}
