"""Requirement validation: only names with versions and extras are accepted."""

from __future__ import annotations

import pytest

from antwort.sandbox.errors import BadRequirement
from antwort.sandbox.packages.requirements import check_requirements

OPTIONS = ["--index-url=http://x", "-r x", "x==1 --hash=a", "a\n--pre"]
ARCHIVES = ["x.whl", "x.tar.gz", "X.ZIP"]
PATHS_AND_URLS = ["git+ssh://g@h/x", "./x", "/x", "../x", "x @ http://h/x.whl", "file:x"]
OTHERS = ["x; python_version > '3'", "a b", "", "é"]


@pytest.mark.parametrize("line", [*OPTIONS, *PATHS_AND_URLS, *ARCHIVES, *OTHERS])
def test_other_than_a_name_with_versions_is_refused(line):
    with pytest.raises(BadRequirement):
        check_requirements([line])


def test_requirements_are_sorted_and_deduplicated():
    assert check_requirements(["rich>=13,<15", "a[b]==1.0", "rich>=13,<15"]) == ["a[b]==1.0", "rich<15,>=13"]
