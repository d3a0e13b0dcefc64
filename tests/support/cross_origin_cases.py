"""Headers that a server without authentication must accept or reject; the tests of both servers use them."""

from __future__ import annotations

ALLOWED_HOSTS = ["127.0.0.1", "127.0.0.1:8080", "127.8.9.10:1", "localhost:3", "LocalHost", "[::1]:80"]

REJECTED_HOSTS = [
    ("Host: rebound.example:8080",),
    ("Host: 127.0.0.1.rebound.example",),
    ("Host: localhost.example",),
    ("Host: localhost.",),
    ("Host: [::ffff:127.0.0.1]:80",),
    ("Host: 192.0.2.1:8080",),
    ("Host: 0.0.0.0:8080",),
    ("Host: localhost", "Host: rebound.example"),
    ("Host: rebound.example", "Host: localhost"),
    ("Host: ",),
    (),
]

REJECTED_ORIGINS = [
    "Origin: https://evil.example",
    "Origin: null",
    "Origin: file://",
    "Origin: http://localhost:3000",
    "origin: http://127.0.0.1:8080",
    "Sec-Fetch-Site: cross-site",
    "Sec-Fetch-Site: same-site",
]

ALLOWED_FETCH_SITE = "Sec-Fetch-Site: none"
"""A person who types the URL into the address bar of a browser."""
