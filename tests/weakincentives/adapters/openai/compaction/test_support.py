from __future__ import annotations

import pytest

from weakincentives.adapters.openai.compaction.support import (
    is_dead_item,
    is_missing,
    is_not_implemented,
    is_too_long,
)
from weakincentives.errors import ProviderFault


@pytest.mark.parametrize(
    "status, code, kinds",
    [
        (404, None, "missing"),
        (405, None, "missing"),
        (501, None, "missing, not implemented"),
        (404, "model_not_found", ""),
        (400, "invalid_encrypted_content", "dead"),
        (None, "invalid_encrypted_content", "dead"),
        (400, "context_length_exceeded", "too long"),
        (500, None, ""),
    ],
)
def test_faults_are_classified_by_status_and_code(status, code, kinds):
    fault = ProviderFault("no", status=status, payload={"code": code})
    checks = {
        "missing": is_missing,
        "not implemented": is_not_implemented,
        "dead": is_dead_item,
        "too long": is_too_long,
    }

    assert ", ".join(name for name, check in checks.items() if check(fault)) == kinds
