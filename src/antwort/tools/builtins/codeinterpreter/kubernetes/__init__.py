"""Sandboxes in Kubernetes: every sandbox is a pod that is claimed from a warm pool of agent-sandbox.

credentials  tokens and credential programs of a kubeconfig, token of a service account
certificates authority and client certificate, read again when their files change
api          REST calls: create, get, list, patch, delete, watch
resources    the fields of a claim that are read, and the manifest that is written
deletions    deletions of claims, repeated until they are confirmed
claims       SandboxClaims: create, wait until ready, renew, delete, sweep
instances    the label of the claims of one server
pods         from a ready claim to the sandbox server in its pod: address, service or router
executions   pods without sessions: a claim for each execution
sandboxes    the `Sandboxes` port on all of them
"""

from __future__ import annotations

from antwort.tools.builtins.codeinterpreter.kubernetes.api import KubeconfigError, KubernetesApi
from antwort.tools.builtins.codeinterpreter.kubernetes.claims import Claims
from antwort.tools.builtins.codeinterpreter.kubernetes.instances import Instance
from antwort.tools.builtins.codeinterpreter.kubernetes.pods import PodConnector, SandboxRouter
from antwort.tools.builtins.codeinterpreter.kubernetes.sandboxes import KubernetesSandboxes

__all__ = [
    "Claims",
    "Instance",
    "KubeconfigError",
    "KubernetesApi",
    "KubernetesSandboxes",
    "PodConnector",
    "SandboxRouter",
]
