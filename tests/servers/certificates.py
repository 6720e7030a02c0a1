"""Certificates for tests: an authority, a server's, a client's, and ones that must not be accepted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key, each in a PEM file, and both in one (as Kafka wants them)."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Makes certificates in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self.file = directory / "authority.pem"
        self._authority.cert_pem.write_to_path(self.file)

    def issue(self, name: str, *, host: str = "127.0.0.1", expired: bool = False) -> Pair:
        """Return a certificate for a host, with its name as the common name."""
        until = datetime.now(UTC) - timedelta(days=1) if expired else None
        made = self._authority.issue_cert(host, common_name=name, not_after=until)
        pair = Pair(*(self._directory / f"{name}.{kind}.pem" for kind in ("certificate", "key", "both")))
        made.cert_chain_pems[0].write_to_path(pair.certificate)
        # Kafka reads PKCS #8 only.
        key = serialization.load_pem_private_key(made.private_key_pem.bytes(), password=None)
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        pair.key.write_bytes(key.private_bytes(*form))
        pair.both.write_bytes(pair.key.read_bytes() + pair.certificate.read_bytes())
        return pair
