"""Certificates for servers and clients of a test, as PEM files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """One certificate and its key."""

    cert_file: Path
    key_file: Path
    """PKCS #8, the only form that Kafka reads."""
    both_file: Path
    """Key and certificate in one file: Kafka's PEM key store."""


def write_certificate(directory: Path, name: str, leaf: trustme.LeafCert) -> Certificate:
    """Write a certificate's files into the directory."""
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    chain = b"".join(each.bytes() for each in leaf.cert_chain_pems)
    found = Certificate(directory / f"{name}.pem", directory / f"{name}.key", directory / f"{name}.both")
    found.cert_file.write_bytes(chain)
    found.key_file.write_bytes(key)
    found.both_file.write_bytes(key + chain)
    return found


def write_authority(directory: Path, name: str, authority: trustme.CA) -> Path:
    """Write what those need who trust the authority."""
    path = directory / f"{name}.pem"
    authority.cert_pem.write_to_path(str(path))
    return path
