"""Objects as users of Sveltos and Karmada write them."""

from __future__ import annotations

from unwind.api.crds import DEFINITIONS

# From the proposals as they stand there, and from Sveltos' and Karmada's documentation; with fields that no model has.
EXAMPLES = """
apiVersion: config.projectsveltos.io/v1beta1
kind: ClusterProfile
metadata:
  name: cleanup-on-delete
spec:
  clusterSelector:
    matchLabels: { env: prod }
  stopMatchingBehavior: RemovePolicies
  clusterDeletionBehavior: RemovePolicies
---
apiVersion: config.projectsveltos.io/v1beta1
kind: ClusterProfile
metadata:
  name: strict-cleanup
spec:
  clusterSelector:
    matchLabels: { env: prod }
  stopMatchingBehavior: RemovePolicies
  clusterDeletionBehavior: EnforceRemovePolicies
---
apiVersion: config.projectsveltos.io/v1beta1
kind: Profile
metadata:
  name: everything
  namespace: default
spec:
  clusterSelector:
    matchExpressions: [{key: env, operator: In, values: [prod, staging]}]
  syncMode: ContinuousWithDriftDetection
  maxUpdate: 30%
  maxConsecutiveFailures: 5
  extraLabels: {team: platform}
  templateResourceRefs:
  - resource: {apiVersion: v1, kind: Secret, namespace: default, name: login}
    identifier: Credentials
    watchFields: [data]
  policyRefs:
  - {kind: ConfigMap, name: "{{ .Cluster.metadata.name }}-policies", namespace: default, skipNamespaceCreation: true}
  - remoteURL: {url: "https://example.io/all.yaml", interval: 10m, template: true}
  helmCharts:
  - repositoryURL: https://kyverno.github.io/kyverno/
    repositoryName: kyverno
    chartName: kyverno/kyverno
    chartVersion: v3.3.3
    releaseName: kyverno-latest
    releaseNamespace: kyverno
    registryCredentialsConfig: {insecureSkipTLSVerify: true}
    options: {atomic: true, installOptions: {createNamespace: true}}
    values: |
      replicas: 3
  kustomizationRefs:
  - {kind: GitRepository, namespace: flux2, name: flux2, path: ./helloWorld/, targetNamespace: eng}
  validateHealths:
  - name: ready
    featureID: Helm
    group: apps
    version: v1
    kind: Deployment
    labelFilters: [{key: app, operation: Equal, value: kyverno}]
    script: |
      function evaluate() return {healthy = true} end
  patches:
  - target: {group: apps, kind: Deployment, name: ".*"}
    patch: "- op: add"
  driftExclusions:
  - paths: [/spec/replicas]
    target: {kind: Deployment, group: apps, version: v1}
---
apiVersion: lib.projectsveltos.io/v1beta1
kind: SveltosCluster
metadata:
  name: edge
  namespace: default
spec:
  kubeconfigName: edge-kubeconfig
  consecutiveFailureThreshold: 3
  tokenRequestRenewalOption: {renewTokenRequestInterval: 1h0m0s}
  data: {region: eu}
  activeWindow: {from: "0 20 * * 5", to: "0 7 * * 1"}
---
apiVersion: cluster.karmada.io/v1alpha1
kind: Cluster
metadata:
  name: member-1
spec:
  syncMode: Push
  apiEndpoint: https://172.18.0.3:6443
  id: 4e1a
  secretRef: {namespace: karmada-cluster, name: member-1}
  proxyHeader: {authorization: none}
  taints: [{key: cluster.karmada.io/not-ready, effect: NoSchedule, timeAdded: "2026-01-02T03:04:05Z"}]
  resourceModels: [{grade: 0, ranges: [{name: cpu, min: "0", max: "1"}]}]
  removeStrategy: Required
---
apiVersion: work.karmada.io/v1alpha1
kind: Work
metadata:
  name: nginx
  namespace: default
spec:
  preserveResourcesOnDeletion: false
  workload:
    manifests:
    - apiVersion: apps/v1
      kind: Deployment
      metadata: {name: nginx, namespace: default, labels: {app: nginx}}
      spec:
        replicas: 2
        selector: {matchLabels: {app: nginx}}
        template:
          metadata: {labels: {app: nginx}}
          spec: {containers: [{name: nginx, image: nginx}]}
"""


KINDS = {(definition.resource.api_version, definition.resource.kind): definition.resource for definition in DEFINITIONS}
