"""TLS policy of HTTP clients: certificate verification against a configured CA or the trust store of the host."""

from __future__ import annotations

import ssl

import httpx2


def client_ssl_context(ca_file: str | None = None) -> ssl.SSLContext:
    """The context that every client transport uses. Certificates and host names are always verified.

    Trusted are the certificates in `ca_file` only (PEM; `OSError` if it cannot be read or has none). Without one, those
    of `SSL_CERT_FILE` or `SSL_CERT_DIR`, else those of the host. Reads files.
    """
    if ca_file is not None:
        return ssl.create_default_context(cafile=ca_file)
    return httpx2.create_ssl_context()
