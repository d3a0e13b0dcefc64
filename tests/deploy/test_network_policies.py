"""Network policies: which connections they allow, computed from the policies as the API of Kubernetes defines them.

A connection is allowed if the policies of both pods allow it: those with its direction that select a pod are added up,
and a pod that none selects is not restricted. agent-sandbox makes one of each SandboxTemplate.
"""

from __future__ import annotations

import ipaddress
from typing import Any, NamedTuple

import pytest
from manifests import Objects


class Peer(NamedTuple):
    """One end of a connection: a pod, or an address outside of the cluster."""

    namespace: str = ""
    labels: frozenset[tuple[str, str]] = frozenset()
    namespace_labels: frozenset[tuple[str, str]] = frozenset()
    ports: tuple[tuple[str, int], ...] = ()
    ip: str = "10.1.1.1"


def pod(namespace: str, labels: dict[str, str], *, ports: dict[str, int] | None = None, **of_namespace: str) -> Peer:
    names = {
        "kubernetes.io/metadata.name": namespace,
        **{f"antwort.dev/{key}": value for key, value in of_namespace.items()},
    }
    return Peer(namespace, frozenset(labels.items()), frozenset(names.items()), tuple((ports or {}).items()))


@pytest.fixture
def peers(objects: Objects) -> dict[str, Peer]:
    found = {
        one.labels["app.kubernetes.io/component"]: pod(one.namespace, one.labels, ports=one.ports)
        for one in objects.pod_templates
    }
    return {
        **found,
        "client": pod("shop", {"app": "shop"}, client="true"),
        "other pod": pod("shop", {"app": "shop"}),
        "impostor": pod("shop", {"app.kubernetes.io/name": "antwort", "app.kubernetes.io/component": "server"}),
        "debug pod": pod("antwort", {"app": "debug"}),
        "router": pod("agent-sandbox-system", {"app": "sandbox-router"}),
        "dns": pod("kube-system", {"k8s-app": "kube-dns"}, ports={"dns": 53}),
        "model": pod("models", {"app": "vllm"}, upstream="true"),
        "internet": Peer(ip="203.0.113.9"),
        "internet v6": Peer(ip="2001:db8::1"),
        "metadata": Peer(ip="169.254.169.254"),
        "metadata v6": Peer(ip="fd00:ec2::254"),
        "local dns": Peer(ip="169.254.20.10"),
    }


ALLOWED = [
    ("client", "server", "TCP", 8080),
    ("server", "server", "TCP", 8080),
    ("server", "sandbox", "TCP", 8080),
    ("server", "dns", "UDP", 53),
    ("server", "dns", "TCP", 53),
    ("server", "local dns", "UDP", 53),
    ("server", "model", "TCP", 8000),
    ("server", "internet", "TCP", 443),
    ("server", "internet", "TCP", 6443),
    ("server", "internet", "TCP", 5432),
    ("server", "internet v6", "TCP", 443),
]
DENIED = [
    ("other pod", "server", "TCP", 8080),
    ("internet", "server", "TCP", 8080),
    ("sandbox", "server", "TCP", 8080),
    ("client", "server", "TCP", 22),
    ("client", "sandbox", "TCP", 8080),
    ("impostor", "sandbox", "TCP", 8080),
    ("debug pod", "sandbox", "TCP", 8080),
    ("router", "sandbox", "TCP", 8080),
    ("internet", "sandbox", "TCP", 8080),
    ("sandbox", "sandbox", "TCP", 8080),
    ("sandbox", "dns", "UDP", 53),
    ("sandbox", "local dns", "UDP", 53),
    ("sandbox", "internet", "TCP", 443),
    ("sandbox", "internet v6", "TCP", 443),
    ("sandbox", "metadata", "TCP", 80),
    ("server", "sandbox", "TCP", 22),
    ("server", "internet", "TCP", 25),
    ("server", "metadata", "TCP", 80),
    ("server", "metadata", "TCP", 443),
    ("server", "metadata v6", "TCP", 443),
    ("debug pod", "internet", "TCP", 443),
]


@pytest.mark.parametrize("source,target,protocol,port", ALLOWED)
def test_a_connection_that_the_servers_need_is_allowed(objects: Objects, peers, source, target, protocol, port):
    assert is_allowed(objects, peers[source], peers[target], protocol, port)


@pytest.mark.parametrize("source,target,protocol,port", DENIED)
def test_every_other_connection_is_denied(objects: Objects, peers, source, target, protocol, port):
    assert not is_allowed(objects, peers[source], peers[target], protocol, port)


def test_the_api_server_of_minikube_is_reached_with_the_local_overlay_only(render, objects: Objects, peers):
    connection = peers["server"], peers["internet"], "TCP", 8443
    assert is_allowed(render("local"), *connection)
    assert is_allowed(objects, *connection) == any(one["metadata"]["name"] == "server-to-minikube" for one in objects)


def test_only_the_servers_reach_the_bundled_database(render):
    objects = render("postgres and gvisor")
    peers = {
        one.labels["app.kubernetes.io/component"]: pod(one.namespace, one.labels, ports=one.ports)
        for one in objects.pod_templates
    }

    assert is_allowed(objects, peers["server"], peers["postgres"], "TCP", 5432)
    assert not is_allowed(objects, peers["sandbox"], peers["postgres"], "TCP", 5432)
    assert not is_allowed(objects, pod("shop", {}, client="true"), peers["postgres"], "TCP", 5432)
    assert not is_allowed(objects, peers["postgres"], Peer(ip="203.0.113.9"), "TCP", 443)


def test_the_policies_of_the_namespace_isolate_the_sandboxes_without_that_of_the_template(base: Objects, peers):
    """The controller writes its policy with a delay, and its default allows the internet."""
    own = Objects([one for one in base if one["kind"] != "SandboxTemplate"])

    assert is_allowed(own, peers["server"], peers["sandbox"], "TCP", 8080)
    assert not is_allowed(own, peers["sandbox"], peers["internet"], "TCP", 443)
    assert not is_allowed(own, peers["sandbox"], peers["sandbox"], "TCP", 8080)


def test_the_template_alone_isolates_the_sandboxes_and_states_both_directions(base: Objects, peers):
    own = Objects([one for one in base if one["kind"] == "SandboxTemplate"])
    (template,) = own

    assert template["spec"]["networkPolicyManagement"] == "Managed"
    assert set(template["spec"]["networkPolicy"]) == {"ingress", "egress"}
    assert is_allowed(own, peers["server"], peers["sandbox"], "TCP", 8080)
    assert not is_allowed(own, peers["router"], peers["sandbox"], "TCP", 8080)
    assert not is_allowed(own, peers["sandbox"], peers["internet"], "TCP", 443)


# ── policies ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def is_allowed(objects: Objects, source: Peer, target: Peer, protocol: str, port: int) -> bool:
    return is_direction_allowed(objects, "Egress", source, target, target, protocol, port) and is_direction_allowed(
        objects, "Ingress", target, source, target, protocol, port
    )


def is_direction_allowed(
    objects: Objects, direction: str, subject: Peer, other: Peer, target: Peer, protocol: str, port: int
) -> bool:
    """Whether the policies that select `subject` allow its traffic with `other` in this direction."""
    field, side = direction.lower(), "to" if direction == "Egress" else "from"
    selecting = [
        spec
        for namespace, spec in policies(objects)
        if namespace == subject.namespace
        and direction in spec["policyTypes"]
        and selects(spec["podSelector"], subject.labels)
    ]
    return not selecting or any(
        (side not in rule or any(is_peer(one, other, subject.namespace) for one in rule[side]))
        and ("ports" not in rule or any(is_port(one, target, protocol, port) for one in rule["ports"]))
        for spec in selecting
        for rule in spec.get(field) or []
    )


def policies(objects: Objects) -> list[tuple[str, dict[str, Any]]]:
    found = [(one["metadata"]["namespace"], one["spec"]) for one in objects.of_kind("NetworkPolicy")]
    for one in objects.of_kind("SandboxTemplate"):
        labels = one["spec"]["podTemplate"]["metadata"]["labels"]
        spec = {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress", "Egress"]}
        found.append((one["metadata"]["namespace"], {**spec, **one["spec"]["networkPolicy"]}))
    return found


def selects(selector: dict, labels: frozenset[tuple[str, str]]) -> bool:
    assert set(selector) <= {"matchLabels"}, "only matchLabels is used"
    return set(selector.get("matchLabels", {}).items()) <= labels


def is_peer(peer: dict, other: Peer, own_namespace: str) -> bool:
    if block := peer.get("ipBlock"):
        address = ipaddress.ip_address(other.ip)
        excluded = any(address in ipaddress.ip_network(one) for one in block.get("except", []))
        return address in ipaddress.ip_network(block["cidr"]) and not excluded
    if "namespaceSelector" in peer:
        is_namespace = bool(other.namespace) and selects(peer["namespaceSelector"], other.namespace_labels)
    else:
        is_namespace = other.namespace == own_namespace
    return is_namespace and selects(peer.get("podSelector", {}), other.labels)


def is_port(rule: dict, target: Peer, protocol: str, port: int) -> bool:
    number = dict(target.ports).get(rule["port"]) if isinstance(rule["port"], str) else rule["port"]
    return (rule.get("protocol", "TCP"), number) == (protocol, port)
