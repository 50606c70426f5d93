{{- define "gleaner.name" -}}
{{ printf "%s" .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "gleaner.image" -}}
{{ required "image.repository: where you pushed the image" .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- define "gleaner.labels" -}}
app.kubernetes.io/name: gleaner
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "gleaner.selector" -}}
app.kubernetes.io/name: gleaner
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{/* A pod of a role. root: the chart's; role: head, reserved or preemptible; values: of that role. */}}
{{- define "gleaner.pod" -}}
{{- $root := .root }}{{ $role := .role }}{{ $values := .values -}}
metadata:
  labels:
    {{- include "gleaner.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $role }}
  annotations:
    cluster-autoscaler.kubernetes.io/safe-to-evict: {{ eq $role "preemptible" | quote }}
    {{- if ne $role "preemptible" }}
    karpenter.sh/do-not-disrupt: "true"
    {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $values.graceSeconds }}
  {{- if and (eq $role "preemptible") $values.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  initContainers:
    # A secret's files can be read by the pod's group; node.secret must be its owner's alone.
    - name: keys
      image: {{ include "gleaner.image" $root | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command:
        - /bin/sh
        - -euc
        - |
          umask 077
          mkdir -p /keys/trusted
          cp /keys-given/node.public /keys-given/node.secret /keys/
          for file in /keys-given/trusted.*.public; do
            cp "$file" "/keys/trusted/${file#/keys-given/trusted.}"
          done
      securityContext:
        {{- toYaml $root.Values.securityContext | nindent 8 }}
      resources:
        requests: {cpu: 10m, memory: 16Mi}
      volumeMounts:
        - {name: keys-given, mountPath: /keys-given, readOnly: true}
        - {name: keys, mountPath: /keys}
  containers:
    - name: nodeagent
      image: {{ include "gleaner.image" $root | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: [nodeagent]
      args:
        - start
        - --role={{ $role }}
        - --name=$(POD_NAME)
        - --keys=/keys
        - --state-dir=/var/lib/gleaner
        - --grace={{ $values.graceSeconds }}
        {{- if eq $role "head" }}
        - --listen=tcp://$(POD_IP):{{ $root.Values.head.port }}
        {{- else }}
        - --listen=tcp://$(POD_IP):0
        - --join=tcp://{{ include "gleaner.name" $root }}-head.{{ $root.Release.Namespace }}.svc:{{ $root.Values.head.port }}
        - --head-key=/keys/trusted/head.public
        - --bulk=clear
        {{- end }}
        {{- if eq $role "preemptible" }}
        - --notices={{ $values.notices }}
        {{- end }}
        {{- if $root.Values.metrics.enabled }}
        - --metrics=$(POD_IP):{{ $root.Values.metrics.port }}
        {{- end }}
      env:
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        - {name: HOME, value: /tmp}
      {{- if or (eq $role "head") $root.Values.metrics.enabled }}
      ports:
        {{- if eq $role "head" }}
        - {name: head, containerPort: {{ $root.Values.head.port }}, protocol: TCP}
        {{- end }}
        {{- if $root.Values.metrics.enabled }}
        - {name: metrics, containerPort: {{ $root.Values.metrics.port }}, protocol: TCP}
        {{- end }}
      {{- end }}
      {{- if eq $role "head" }}
      readinessProbe:
        tcpSocket: {port: head}
        periodSeconds: 5
      {{- else }}
      readinessProbe:
        exec: {command: [nodeagent, status, --state-dir=/var/lib/gleaner]}
        initialDelaySeconds: 10
        periodSeconds: 60
        timeoutSeconds: 20
      {{- end }}
      # A node agent whose event loop stands still answers nobody; a stopped process takes no SIGTERM either.
      livenessProbe:
        exec: {command: [nodeagent, status, --state-dir=/var/lib/gleaner]}
        initialDelaySeconds: 60
        periodSeconds: 30
        timeoutSeconds: 20
        failureThreshold: 3
        terminationGracePeriodSeconds: 5
      securityContext:
        {{- toYaml $root.Values.securityContext | nindent 8 }}
      {{- with $values.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - {name: keys, mountPath: /keys, readOnly: true}
        - {name: state, mountPath: /var/lib/gleaner}
        - {name: tmp, mountPath: /tmp}
        - {name: shm, mountPath: /dev/shm}
        {{- if ne $role "preemptible" }}
        - {name: shared, mountPath: {{ $root.Values.shared.mountPath }}}
        {{- end }}
  volumes:
    - name: keys-given
      secret:
        secretName: {{ index $root.Values.keys $role }}
        defaultMode: 0440
    - name: keys
      emptyDir: {medium: Memory, sizeLimit: 4Mi}
    - name: tmp
      emptyDir: {}
    - name: shm
      emptyDir:
        medium: Memory
        {{- with $values.sharedMemory }}
        sizeLimit: {{ . }}
        {{- end }}
    {{- if eq $role "preemptible" }}
    - name: state
      emptyDir: {}
    {{- else }}
    - name: shared
      persistentVolumeClaim:
        claimName: {{ required "shared.existingClaim: a claim that head and reserved host can mount" $root.Values.shared.existingClaim }}
    {{- end }}
{{- end }}

{{/* The head and the reserved host: one pod each, with a name and a disk that stay. */}}
{{- define "gleaner.stateful" -}}
{{- $root := .root }}{{ $role := .role }}{{ $values := .values -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ include "gleaner.name" $root }}-{{ $role }}
  labels:
    {{- include "gleaner.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $role }}
spec:
  serviceName: {{ include "gleaner.name" $root }}-head
  replicas: 1
  selector:
    matchLabels:
      {{- include "gleaner.selector" . | nindent 6 }}
  template:
    {{- include "gleaner.pod" . | nindent 4 }}
  volumeClaimTemplates:
    - metadata:
        name: state
      spec:
        accessModes: [ReadWriteOnce]
        {{- with $values.state.storageClassName }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ $values.state.size }}
{{- end }}
