"""A private certificate authority, a server certificate for 127.0.0.1 that it signed, and client certificates."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class PrivateCa:
    """`ca_file` is the certificate of the authority; `server_context` is for a server on 127.0.0.1."""

    def __init__(self, directory: Path) -> None:
        self._authority_key = authority_key = ec.generate_private_key(ec.SECP256R1())
        server_key = ec.generate_private_key(ec.SECP256R1())
        authority = (
            _builder("private CA", "private CA", authority_key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(authority_key, hashes.SHA256())
        )
        loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        server = (
            _builder("127.0.0.1", "private CA", server_key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(loopback, critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        self.ca_file = directory / "ca.pem"
        self.ca_file.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
        chain = directory / "server.pem"
        chain.write_bytes(_pem(server_key) + server.public_bytes(serialization.Encoding.PEM))
        self.server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server_context.load_cert_chain(chain)

    def issue_client(self, name: str, certificate_file: Path, key_file: Path) -> None:
        """Write a new client certificate with this name, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _builder(name, "private CA", key).sign(self._authority_key, hashes.SHA256())
        key_file.write_bytes(_pem(key))
        certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
