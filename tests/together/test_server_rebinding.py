"""Names that resolve to another address the next time (DNS rebinding), with the server on real sockets.

The resolver is a fake `socket.getaddrinfo`, which the event loop calls in a thread.
"""

from __future__ import annotations

import socket

import pytest
from fake_web_site import PNG, fake_web_site
from fixtures_in_process_server import run_in_process_server

pytestmark = pytest.mark.anyio

METADATA = "169.254.169.254"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def site():
    with fake_web_site() as running:
        yield running


@pytest.fixture
def names(monkeypatch):
    """Addresses of names: those of the first resolution, of the second, and so on. Resolutions are taken from them."""
    answers: dict[str, list[list[str]]] = {}
    resolve = socket.getaddrinfo

    def getaddrinfo(host, port, *rest, **options):
        if host not in answers:
            return resolve(host, port, *rest, **options)
        return [one for address in answers[host].pop(0) for one in resolve(address, port, *rest, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return answers


@pytest.fixture
async def server(tmp_path, site):
    fetch = {"input_urls": True, "allow_networks": ["127.0.0.1/32"], "ports": [site.port], "timeout": 5}
    async with run_in_process_server(tmp_path, {"fetch": fetch}) as running:
        yield running


async def ask(server, url: str):
    part = {"type": "input_image", "image_url": url}
    body = {"model": "scripted", "input": [{"role": "user", "content": [part]}]}
    return await server.http.post("/v1/responses", json=body)


async def test_a_name_is_resolved_once_and_the_connection_goes_to_the_checked_address(server, site, names):
    names["rebind.example"] = [["127.0.0.1"], [METADATA]]
    before = len(site.paths)
    answer = await ask(server, f"http://rebind.example:{site.port}/image")

    assert answer.json()["status"] == "completed"
    assert names["rebind.example"] == [[METADATA]]
    assert site.requests[before][1]["host"] == f"rebind.example:{site.port}"
    items = await server.http.get(
        f"/v1/responses/{answer.json()['id']}/input_items", params={"include[]": "message.input_image.image_url"}
    )
    assert items.json()["data"][0]["content"][0]["image_url"].startswith("data:image/png;base64,iVBORw0KGgo")
    assert PNG.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "resolutions, path",
    [
        ([[METADATA]], "/image"),
        ([["127.0.0.1", METADATA]], "/image"),
        ([["127.0.0.1", "::1"]], "/image"),
        ([["127.0.0.2"]], "/image"),
        ([["127.0.0.1"], [METADATA]], "/redirect?to=/image"),
        ([["127.0.0.1"], ["127.0.0.1", "10.0.0.1"]], "/redirect?to=/image"),
    ],
)
async def test_each_address_of_each_resolution_is_checked(server, site, names, resolutions, path):
    names["rebind.example"] = resolutions
    before = site.paths.count("/image")
    answer = await ask(server, f"http://rebind.example:{site.port}{path}")

    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "input[0].content[0].image_url")
    assert error["message"] == "The URL could not be fetched: rebind.example is not on the public internet."
    assert names["rebind.example"] == []
    assert site.paths.count("/image") == before
