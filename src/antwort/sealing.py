"""Authenticated encryption (AES-256-GCM) of compaction and reasoning items, with a ring of rotatable keys.

A client keeps sealed items and sends them back. A token opens only for the tenant that it was made for, and only as
the item that it was made for:

    token     = "antwort1." + base64url(key id, 4 bytes | nonce, 12 random bytes | ciphertext and tag)
    plaintext = flag, 1 byte | length of the item id, 2 bytes | item id | content, compressed if the flag is 1

The format version, the key id and the tenant are associated data of the encryption. Random nonces are safe for 2^32
tokens of one key.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import time
import zlib
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Meta, Struct

from antwort.private_file import PrivateFile, PrivateFileError

MAX_CONTENT = 64 * 1024 * 1024
"""Maximum bytes of the content of a token, decompressed."""

_VERSION = "antwort1"
_PREFIX = f"{_VERSION}."
_KEY_ID_BYTES = 4
_KEY_ID_CHARS = 8  # of base64, in groups of four: they contain the key id
_NONCE_BYTES = 12
_TAG_BYTES = 16
_ID_LENGTH_BYTES = 2
_SIGNATURE_BYTES = 16
_STORED, _COMPRESSED = b"\0", b"\1"

SealReason: TypeAlias = Literal["undecryptable", "wrong_item"]
_REASONS: dict[SealReason, str] = {
    "undecryptable": "Encrypted content could not be decrypted or parsed.",
    "wrong_item": "Encrypted content item_id did not match the target item id.",
}


class SealingKeysError(PrivateFileError):
    """The sealing keys cannot be used; the message says what to do."""


class MissingSealingKeys(SealingKeysError):
    """There is no file of sealing keys yet."""


class InvalidSeal(Exception):
    """A token cannot be opened: it is not decryptable with any key for this tenant, or was made for another item."""

    def __init__(self, reason: SealReason) -> None:
        super().__init__(_REASONS[reason])
        self.reason: SealReason = reason


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class SealingKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key of 256 bits, in base64url. Tokens contain the id of their key."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{8}\Z")]
    secret: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]\Z")]
    created_at: int

    def __repr__(self) -> str:
        return f"SealingKey(id={self.id!r}, created_at={self.created_at})"  # tracebacks and logs show no secret


class _SealingKeyFile(Struct, forbid_unknown_fields=True):
    keys: Annotated[list[SealingKey], Meta(min_length=1)]
    version: Literal[1]


class SealingKeys:
    """The sealing keys of a file, oldest first. The last one seals; all of them open."""

    def __init__(self, path: Path, keys: tuple[SealingKey, ...]) -> None:
        self.path = path
        self.keys = keys

    @property
    def newest(self) -> SealingKey:
        return self.keys[-1]

    @classmethod
    def read(cls, path: Path) -> SealingKeys:
        """Read the file; `MissingSealingKeys` if there is none, `SealingKeysError` if it cannot be used."""
        try:
            return cls._read(path)
        except FileNotFoundError as error:
            message = f"There are no sealing keys at {path}: `antwort keys rotate-compaction` creates the file."
            raise MissingSealingKeys(message) from error

    @classmethod
    def open_or_create(cls, path: Path) -> SealingKeys:
        """Read the file. If it is missing, create it with one key; of concurrent processes one does that."""
        try:
            return cls._read(path)
        except FileNotFoundError:
            pass
        file = PrivateFile(path)
        try:
            with file.locked():
                try:
                    return cls._read(path)  # another process was faster
                except FileNotFoundError:
                    return cls._write(file, (_new_key(()),))
        except OSError as error:
            raise _not_writable(path, error) from error

    def rotate(self, *, keep: int | None = None) -> SealingKeys:
        """Add a new key to the file, and drop all but the `keep` newest keys if that is given."""
        if keep is not None and keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        file = PrivateFile(self.path)
        try:
            with file.locked():
                current = self.read(self.path).keys  # another process may have added keys
                keys = (*current, _new_key(current))
                return self._write(file, keys if keep is None else keys[-keep:])
        except OSError as error:
            raise _not_writable(self.path, error) from error

    @classmethod
    def _read(cls, path: Path) -> SealingKeys:
        try:
            keys = msgspec.json.decode(PrivateFile(path).read(), type=_SealingKeyFile).keys
        except FileNotFoundError:
            raise
        except PrivateFileError as error:
            raise SealingKeysError(str(error)) from error
        except OSError as error:
            raise SealingKeysError(f"The sealing keys cannot be read: {error}. Make the file readable.") from error
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise _not_a_key_file(path, str(error)) from error
        if len({key.id for key in keys}) < len(keys):
            raise _not_a_key_file(path, "two keys have the same id")
        return cls(path, tuple(keys))

    @classmethod
    def _write(cls, file: PrivateFile, keys: tuple[SealingKey, ...]) -> SealingKeys:
        content = msgspec.json.encode(_SealingKeyFile(list(keys), 1))
        file.write(msgspec.json.format(content, indent=2) + b"\n")
        return cls(file.path, keys)


def _new_key(existing: tuple[SealingKey, ...]) -> SealingKey:
    used = {key.id for key in existing}
    identifier = next(new for new in iter(lambda: secrets.token_hex(_KEY_ID_BYTES), "") if new not in used)
    return SealingKey(id=identifier, secret=_encode(secrets.token_bytes(32)), created_at=int(time.time()))


def _not_writable(path: Path, error: OSError) -> SealingKeysError:
    return SealingKeysError(
        f"The sealing keys cannot be written: {error}. Make the directory of {path} writable, or set "
        "`compaction.keys_file` to another file."
    )


def _not_a_key_file(path: Path, reason: str) -> SealingKeysError:
    return SealingKeysError(
        f"{path} is not a file of sealing keys: {reason}. Restore it from a backup, or move it away: then a new key is "
        "created, and items that were sealed before cannot be read."
    )


# ── sealing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Unsealed(NamedTuple):
    """An opened token: the id of the item that it was made for, and its content."""

    item_id: str
    content: bytes


class _SealedMessage(NamedTuple):
    item_id: str
    content: bytes
    is_compressed: bool


class _Ring(NamedTuple):
    newest: bytes
    ciphers: dict[bytes, AESGCM]
    signing: dict[bytes, bytes]


class Sealer:
    """Seals the content of items for a tenant, and opens it. Pure computation; safe to use from several threads."""

    def __init__(self, keys: SealingKeys) -> None:
        self._ring = _make_ring(keys)

    def replace(self, keys: SealingKeys) -> None:
        """Use these keys from now on."""
        self._ring = _make_ring(keys)

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The public ids of the keys."""
        return tuple(key.hex() for key in self._ring.ciphers)

    def seal(self, tenant: str, item_id: str, plain: bytes) -> str:
        """A token with this content, which opens for this tenant and item. At most `MAX_CONTENT` bytes."""
        if len(plain) > MAX_CONTENT:
            raise ValueError(f"the content has {len(plain)} bytes; at most {MAX_CONTENT} can be sealed")
        ring = self._ring
        compressed = zlib.compress(plain)
        is_smaller = len(compressed) < len(plain)
        name = item_id.encode()
        message = b"".join(
            (
                _COMPRESSED if is_smaller else _STORED,
                len(name).to_bytes(_ID_LENGTH_BYTES, "big"),
                name,
                compressed if is_smaller else plain,
            )
        )
        nonce = secrets.token_bytes(_NONCE_BYTES)
        ciphertext = ring.ciphers[ring.newest].encrypt(nonce, message, _associated_data(ring.newest, tenant))
        return _PREFIX + _encode(ring.newest + nonce + ciphertext)

    def open(self, tenant: str, item_id: str | None, token: str) -> Unsealed:
        """Open a token; `InvalidSeal` if that fails.

        With an `item_id`, the token must have been made for this item. Without one only the tenant is checked, because
        clients may remove the ids of items.
        """
        sealed = self._verified(tenant, item_id, token)
        return Unsealed(sealed.item_id, _decompress(sealed.content) if sealed.is_compressed else sealed.content)

    def verify(self, tenant: str, item_id: str | None, token: str) -> str:
        """The id of the item that a token was made for; `InvalidSeal` as `open`. Does not decompress the content."""
        return self._verified(tenant, item_id, token).item_id

    def _verified(self, tenant: str, item_id: str | None, token: str) -> _SealedMessage:
        sealed = _parse(self._decrypt(tenant, token))
        if item_id is not None and item_id != sealed.item_id:
            raise InvalidSeal("wrong_item")
        return sealed

    def sign(self, tenant: str, message: bytes) -> str:
        """A signature of a message for a tenant: 128 bits of HMAC-SHA256, with a key derived from the newest one."""
        return _signature(self._ring.signing[self._ring.newest], tenant, message)

    def is_signed(self, tenant: str, message: bytes, signature: str) -> bool:
        """Whether a signature was made with one of the keys, for this tenant and message."""
        if not signature.isascii():  # which `compare_digest` does not compare
            return False
        keys = self._ring.signing.values()
        return any(hmac.compare_digest(_signature(key, tenant, message), signature) for key in keys)

    def is_own(self, token: str) -> bool:
        """Whether a token names a key of this server. It may still be forged.

        The tokens of another server of this kind, such as the upstream of a model, have the same format.
        """
        start = token[len(_PREFIX) : len(_PREFIX) + _KEY_ID_CHARS]
        return token.startswith(_PREFIX) and _split(_decode(start))[0] in self._ring.ciphers

    def _decrypt(self, tenant: str, token: str) -> bytes:
        sealed = _decode(token.removeprefix(_PREFIX)) if self.is_own(token) else b""
        key_id, nonce, ciphertext = _split(sealed)
        cipher = self._ring.ciphers.get(key_id)
        if cipher is None or len(ciphertext) < _TAG_BYTES:
            raise InvalidSeal("undecryptable")
        try:
            return cipher.decrypt(nonce, ciphertext, _associated_data(key_id, tenant))
        except InvalidTag as error:
            raise InvalidSeal("undecryptable") from error


def _make_ring(keys: SealingKeys) -> _Ring:
    ciphers = {bytes.fromhex(key.id): AESGCM(_decode(key.secret)) for key in keys.keys}
    signing = {
        bytes.fromhex(key.id): hmac.digest(_decode(key.secret), b"antwort1 signatures", "sha256") for key in keys.keys
    }
    return _Ring(bytes.fromhex(keys.newest.id), ciphers, signing)


def _signature(key: bytes, tenant: str, message: bytes) -> str:
    name = tenant.encode()
    signed = len(name).to_bytes(_ID_LENGTH_BYTES, "big") + name + message
    return hmac.digest(key, signed, "sha256")[:_SIGNATURE_BYTES].hex()


def _associated_data(key_id: bytes, tenant: str) -> bytes:
    return _VERSION.encode() + key_id + tenant.encode()  # unambiguous: all but the last part have a fixed length


def _split(sealed: bytes) -> tuple[bytes, bytes, bytes]:
    end = _KEY_ID_BYTES + _NONCE_BYTES
    return sealed[:_KEY_ID_BYTES], sealed[_KEY_ID_BYTES:end], sealed[end:]


def _parse(message: bytes) -> _SealedMessage:
    start = 1 + _ID_LENGTH_BYTES
    end = start + int.from_bytes(message[1:start], "big")
    return _SealedMessage(message[start:end].decode(), message[end:], message[:1] == _COMPRESSED)


def _decompress(content: bytes) -> bytes:
    """Decompress at most `MAX_CONTENT` bytes, so that a small token cannot fill the memory."""
    decompressor = zlib.decompressobj()
    try:
        plain = decompressor.decompress(content, MAX_CONTENT + 1)
    except zlib.error as error:
        raise InvalidSeal("undecryptable") from error
    if len(plain) > MAX_CONTENT or not decompressor.eof:
        raise InvalidSeal("undecryptable")
    return plain


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """The bytes of canonical base64url without padding; empty for any other text.

    Python's decoder skips invalid characters and ignores unused bits, so a changed token could decode to the same
    bytes. The comparison rules that out.
    """
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""
    return data if _encode(data) == text else b""
