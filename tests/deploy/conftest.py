"""Fixtures: the rendered manifests."""

from __future__ import annotations

from typing import cast

import pytest
from manifests import COMBINATIONS, Objects, render_combination


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def render(tmp_path_factory):
    """Renders a combination by its name, once."""
    rendered: dict[str, Objects] = {}

    def render(name: str) -> Objects:
        if name not in rendered:
            rendered[name] = render_combination(name, tmp_path_factory.mktemp("combination"))
        return rendered[name]

    return render


@pytest.fixture(scope="session", params=COMBINATIONS)
def objects(request, render) -> Objects:
    """The objects of each combination."""
    return render(cast("str", request.param))


@pytest.fixture(scope="session")
def base(render) -> Objects:
    return render("base")
