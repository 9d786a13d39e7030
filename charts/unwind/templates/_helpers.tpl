{{- define "unwind.image" -}}
{{- $repository := .Values.image.repository -}}
{{- with .Values.image.registry }}{{ $repository = printf "%s/%s" . $repository }}{{ end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* The archive of finished Teardowns, if there is a claim for it: lists, as JSON. */ -}}
{{- define "unwind.archiveVolumes" -}}
{{- if .Values.archive.existingClaim -}}
{{- list (dict "name" "archive" "persistentVolumeClaim" (dict "claimName" .Values.archive.existingClaim)) | toJson -}}
{{- else -}}[]{{- end -}}
{{- end -}}
{{- define "unwind.archiveMounts" -}}
{{- if .Values.archive.existingClaim -}}
{{- list (dict "name" "archive" "mountPath" "/var/lib/unwind/archive" "subPath" .Values.archive.subPath) | toJson -}}
{{- else -}}[]{{- end -}}
{{- end -}}
{{- define "unwind.archiveArgs" -}}
{{- if .Values.archive.existingClaim -}}
{{- list "--archive=/var/lib/unwind/archive" | toJson -}}
{{- else -}}[]{{- end -}}
{{- end -}}
