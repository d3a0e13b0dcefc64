from __future__ import annotations

import pytest

from antwort.api.errors import ApiError
from antwort.tools.builtins.websearch.domains import AllowedDomains, allowed_domains, comparable_url, host_of


@pytest.mark.parametrize(
    "host, is_allowed",
    [
        ("tea.example", True),
        ("www.tea.example", True),
        ("a.b.tea.example", True),
        ("TEA.example.", True),
        ("xtea.example", False),
        ("tea.example.evil.example", False),
        ("example", False),
        ("evil.example", False),
        ("", False),
    ],
)
def test_domains_allow_themselves_and_their_subdomains(host, is_allowed):
    assert AllowedDomains(("tea.example",)).allows(host) is is_allowed
    assert AllowedDomains().allows(host)


def test_domains_are_compared_in_ascii_and_lower_case():
    domains = allowed_domains(["Tea.Example.", "grün.example", "tea.example", "a_b.example"], "p")

    assert domains.domains == ("tea.example", "xn--grn-ioa.example", "a_b.example")


@pytest.mark.parametrize(
    "entry",
    [
        "",
        " ",
        "example",
        "https://tea.example",
        "tea.example/path",
        "tea.example:443",
        "*.tea.example",
        "tea..example",
        "-tea.example",
        "tea.example\n",
        "tea example.com",
        "127.0.0.1",
        "127.1",
        "[::1]",
        "user@tea.example",
        "tea.example#",
        f"{'a' * 64}.example",
        ".".join(["a" * 60] * 5),
        "\ud800.example",
    ],
)
def test_what_is_not_a_domain_is_refused_by_its_path(entry):
    with pytest.raises(ApiError, match="Invalid domain") as caught:
        allowed_domains(["tea.example", entry], "tools[0].filters.allowed_domains")

    assert (caught.value.status, caught.value.param) == (400, "tools[0].filters.allowed_domains[1]")


@pytest.mark.parametrize(
    "url, host",
    [
        ("https://Tea.example./x", "tea.example"),
        ("http://[::1]:80/", "::1"),
        ("javascript:alert(1)", ""),
        ("//tea.example/", ""),
        ("https://[", ""),
        ("ftp://tea.example/", ""),
    ],
)
def test_the_host_of_a_url(url, host):
    assert host_of(url) == host


@pytest.mark.parametrize(
    "url, comparable",
    [
        ("HTTPS://Tea.example:443#top", "https://tea.example/"),
        ("http://tea.example:8080/a?b=c#d", "http://tea.example:8080/a?b=c"),
        ("https://tea.example/grün?ä=茶 x", "https://tea.example/gr%C3%BCn?%C3%A4=%E8%8C%B6%20x"),
        ("https://tea.example/a%20b", "https://tea.example/a%20b"),
        ("https://grün.example/", "https://xn--grn-ioa.example/"),
        ("https://en.example/Tea_(drink)", "https://en.example/Tea_(drink)"),
        ("http://[::1]/", "http://[::1]/"),
        ("https://[", "https://["),
        ("https://a:b/", "https://a:b/"),
    ],
)
def test_urls_of_one_page_are_the_same(url, comparable):
    assert comparable_url(url) == comparable
    assert comparable_url(comparable) == comparable
