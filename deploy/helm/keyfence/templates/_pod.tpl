{{/* keyfence's container, the same in both forms. */}}
{{- define "keyfence.container" -}}
name: keyfence
image: {{ include "keyfence.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [run, --config, /etc/keyfence/config/keyfence.yaml]
{{- include "keyfence.environment" . }}
ports:
{{- range include "keyfence.ports" . | fromJsonArray }}
  - {name: redis-{{ int . }}, containerPort: {{ int . }}}
{{- end }}
  - {name: metrics, containerPort: {{ include "keyfence.port" .Values.config.metrics }}}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 3
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 3
{{- if .Values.drainDelaySeconds }}
lifecycle:
  preStop: {exec: {command: [sleep, {{ .Values.drainDelaySeconds | quote }}]}}
{{- end }}
resources: {{- toYaml .Values.resources | nindent 2 }}
securityContext: {{- include "keyfence.securityContext" . | nindent 2 }}
volumeMounts: {{- include "keyfence.mounts" . | nindent 2 }}
  - {name: keyfence-findings, mountPath: /var/lib/keyfence}
{{- end -}}

{{/* Reloads keyfence when the mounted files have changed, and once at the start, because they may have changed before
it looked. The kubelet updates them within a minute or two. A fault is in its log, and it tries again after a minute.
The first process of a container ignores SIGTERM unless it has a trap, and then the pod lasts for its whole
terminationGracePeriodSeconds. */}}
{{- define "keyfence.reloader" -}}
name: keyfence-reload
image: {{ include "keyfence.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command:
  - sh
  - -c
  - |
    files() { cat /etc/keyfence/config/*.yaml /etc/keyfence/policy/*.yaml /etc/keyfence/secrets/*/* 2>/dev/null | sha256sum; }
    pause() { sleep "$1" & wait $!; }
    trap 'exit 0' TERM
    loaded=
    while pause 5; do
      found=$(files)
      [ "$found" = "$loaded" ] && continue
      if keyfence reload --config /etc/keyfence/config/keyfence.yaml; then loaded=$found; else pause 55; fi
    done
{{- include "keyfence.environment" . }}
resources: {requests: {cpu: 10m, memory: 64Mi}, limits: {memory: 256Mi}}
securityContext: {{- include "keyfence.securityContext" . | nindent 2 }}
volumeMounts: {{- include "keyfence.mounts" . | nindent 2 }}
{{- end -}}

{{- define "keyfence.environment" -}}
{{- with .Values.secretVariables }}
env:
{{- range . }}
  - name: {{ .name }}
    valueFrom: {secretKeyRef: {name: {{ .secret | quote }}, key: {{ .key | quote }}}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "keyfence.securityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* No subPath: what is mounted by one never changes. A volume of a Secret has a number in place of the Secret's name,
which may have dots and be too long for it. */}}
{{- define "keyfence.mounts" -}}
- {name: keyfence-config, mountPath: /etc/keyfence/config, readOnly: true}
- {name: keyfence-policy, mountPath: /etc/keyfence/policy, readOnly: true}
- {name: keyfence-tmp, mountPath: /tmp}
{{- range $number, $one := .Values.secretFiles }}
- {name: keyfence-secret-{{ $number }}, mountPath: {{ printf "/etc/keyfence/secrets/%s" $one.secret | quote }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "keyfence.volumes" -}}
- {name: keyfence-config, configMap: {name: {{ include "keyfence.fullname" . }}}}
- {name: keyfence-policy, configMap: {name: {{ include "keyfence.policyMap" . | quote }}}}
- {name: keyfence-tmp, emptyDir: {sizeLimit: 64Mi}}
{{- range $number, $one := .Values.secretFiles }}
- {name: keyfence-secret-{{ $number }}, secret: {secretName: {{ $one.secret | quote }}, defaultMode: 0440}}
{{- end }}
{{- with .Values.findings }}
{{- if .existingClaim }}
- {name: keyfence-findings, persistentVolumeClaim: {claimName: {{ .existingClaim | quote }}}}
{{- else }}
- {name: keyfence-findings, emptyDir: {sizeLimit: {{ .size }}}}
{{- end }}
{{- end }}
{{- end -}}

{{/* What restarts the pods when it changes: everything, or what a reload cannot put in force. */}}
{{- define "keyfence.checksum" -}}
{{- if eq .Values.reload "watch" -}}
{{- pick .Values.config "upstream" "listeners" "admin" "metrics" "workers" "findings" "decision_log" "notify" | toYaml | sha256sum -}}
{{- else -}}
{{- list .Values.config .Values.policy .Values.waivers | toYaml | sha256sum -}}
{{- end -}}
{{- end -}}
