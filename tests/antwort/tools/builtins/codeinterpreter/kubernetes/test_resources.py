from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from antwort.tools.builtins.codeinterpreter.kubernetes.resources import (
    Claim,
    ClaimCondition,
    ClaimedPod,
    ClaimLifecycle,
    ClaimSpec,
    ClaimStatus,
    manifest,
    preferred_version,
)

NOON = datetime(2026, 8, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "served, version",
    [(["v1alpha1", "v1beta1"], "v1beta1"), (["v1alpha1"], "v1alpha1"), (["v2"], None)],
)
def test_the_preferred_version_is_v1beta1(served, version):
    assert preferred_version(served) == version


@pytest.mark.parametrize(
    "version, reference",
    [
        ("v1beta1", {"warmPoolRef": {"name": "pool"}}),
        ("v1alpha1", {"sandboxTemplateRef": {"name": "template"}, "warmpool": "pool"}),
    ],
)
def test_a_manifest_names_the_pool_and_is_always_deleted(version, reference):
    claim = manifest(version, name="a", instance="one", template="template", warm_pool="pool", shutdown_time=NOON)

    assert claim["apiVersion"] == f"extensions.agents.x-k8s.io/{version}"
    assert claim["metadata"] == {"name": "a", "labels": {"antwort.dev/instance": "one"}}
    lifecycle = {"shutdownTime": "2026-08-01T12:00:00Z", "shutdownPolicy": "Delete"}
    assert claim["spec"] == {**reference, "lifecycle": lifecycle}


TERMINAL = (
    *("InvalidMetadata", "EnvVarsInjectionRejected", "VolumeClaimTemplatesError", "ClaimExpired", "SandboxExpired"),
    *("PodFailed", "PodSucceeded", "InvalidConfiguration", "TemplateNotFound", "WarmPoolNotFound"),
)
TRANSIENT = (
    *("SandboxMissing", "SandboxNotReady", "DependenciesNotReady", "AdoptionConflict", "SandboxCreatePending"),
    *("ReconcilerError", "AReasonOfALaterVersion"),
)


@pytest.mark.parametrize("reason", [*TERMINAL, *TRANSIENT])
def test_reasons_after_which_a_claim_does_not_become_ready(reason):
    claim = Claim(status=ClaimStatus([ClaimCondition("Ready", "False", reason, "why")]))

    assert claim.failure == (f"{reason}: why" if reason in TERMINAL else None)


@pytest.mark.parametrize(
    "condition, sandbox, is_ready, failure",
    [
        (ClaimCondition("Ready", "True", "DependenciesReady"), "s", True, None),
        (ClaimCondition("Ready", "True", "DependenciesReady"), "", False, None),
        (ClaimCondition("Ready", "False", "ReconcilerError", "again"), "s", False, None),
        (ClaimCondition("Ready", "False", "TemplateNotFound", "no x"), "", False, "TemplateNotFound: no x"),
        (ClaimCondition("Finished", "True", "PodSucceeded"), "s", False, "PodSucceeded"),
    ],
)
def test_what_a_status_means(condition, sandbox, is_ready, failure):
    claim = Claim(status=ClaimStatus([condition], ClaimedPod(sandbox)))

    assert (claim.is_ready, claim.failure) == (is_ready, failure)


@pytest.mark.parametrize(
    "text, address",
    [
        ("10.0.0.1", "10.0.0.1"),
        ("FD00:0::0001", "fd00::1"),
        ("fe80::1%eth0", None),
        ("fe80::1%a]:80@evil.example?", None),
        ("", None),
    ],
)
def test_an_address_is_compared_in_its_canonical_form_and_has_no_zone(text, address):
    claim = Claim(status=ClaimStatus(sandbox=ClaimedPod("s", [text])))

    assert claim.pod_ip == address
    assert claim.has_pod_of(claim)


@pytest.mark.parametrize("shutdown, expired", [(NOON, True), (NOON + timedelta(hours=2), False), (None, False)])
def test_a_claim_that_was_not_renewed_has_expired(shutdown, expired):
    claim = Claim(spec=ClaimSpec(ClaimLifecycle(shutdown)))

    assert claim.has_expired(NOON + timedelta(hours=1), timedelta(minutes=1)) is expired
