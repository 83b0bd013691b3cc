{{- define "holdfast.name" -}}
{{- if contains "holdfast" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-holdfast{{ end }}
{{- end }}

{{- define "holdfast.labels" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "holdfast.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "holdfast.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "holdfast.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "holdfast.env" -}}
- name: HOLDFAST_META
  valueFrom:
    secretKeyRef:
      name: {{ required "meta.secretName: the secret with the URL of the meta store" .Values.meta.secretName }}
      key: {{ .Values.meta.secretKey }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "holdfast.mounts" -}}
- { name: store, mountPath: /store }
- { name: program, mountPath: /program, readOnly: true }
- { name: tmp, mountPath: /tmp }
- { name: volatile, mountPath: /dev/shm }
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "holdfast.volumes" -}}
- name: store
  persistentVolumeClaim:
    claimName: {{ .Values.store.existingClaim | default (printf "%s-store" (include "holdfast.name" .)) }}
- name: program
  configMap:
    name: {{ .Values.programConfigMap | default (printf "%s-program" (include "holdfast.name" .)) }}
- name: tmp
  emptyDir: {}
- name: volatile
  emptyDir: { medium: Memory, sizeLimit: {{ .Values.volatile.size }} }
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "holdfast.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "holdfast.annotations" -}}
# A changed program restarts the pods, one after the other.
checksum/program: {{ .Values.program | sha256sum }}
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}
