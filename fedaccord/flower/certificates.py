"""Keys and certificates of a real federation: an authority, the SuperLink's certificate, the nodes' keys."""

import datetime
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaccord.core.errors import RunError, SettingsError
from fedaccord.core.files import write_durably


@dataclass(frozen=True)
class Link:
    """How to reach the SuperLink, and how to prove to it who one is."""

    address: str
    certificates: bytes | None  # of the authority that signed its certificate; None: plaintext
    key: Path | None = None  # a node's private key
    secret: bytes | None = None  # with which the server proves that runs are its to serve

    @property
    def place(self) -> tuple[str, bool, bytes | None]:
        """The address, whether it is reached in plaintext, and the certificates."""
        return self.address, self.certificates is None, self.certificates

    def key_pair(self) -> Any:
        """Read the node's private key and derive the public one; None if it has none."""
        if self.key is None:
            return None
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key

        try:
            key = load_ssh_private_key(self.key.read_bytes(), None)
        except (OSError, ValueError) as error:
            raise SettingsError(f"{self.key}: not a private key of a node: {error}") from None
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key, key.public_key()


def make_authority(folder: Path, hosts: Sequence[str], days: int = 365) -> None:
    """Make an authority, and a certificate for the SuperLink at these hosts.

    ca.pem is to give away, ca.key to keep; server.pem, server.key and secret are the SuperLink's.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    now = datetime.datetime.now(datetime.UTC)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])

    def certificate(subject: str, key: Any, issuer_key: Any, is_authority: bool) -> x509.CertificateBuilder:
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
             "decipher_only"), False
        )  # fmt: skip
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("fedaccord authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=min(0, days) - 1))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
            .add_extension(
                x509.KeyUsage(digital_signature=True, key_cert_sign=is_authority, crl_sign=is_authority, **usage), True
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        )

    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    own = certificate("fedaccord authority", authority, authority, True).sign(authority, hashes.SHA256())
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    signed = (
        certificate("superlink", server, authority, False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    for file, key in (("ca.key", authority), ("server.key", server)):
        secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        write_durably(folder / file, secret, mode=0o600)
    write_durably(folder / "ca.pem", own.public_bytes(pem))
    write_durably(folder / "server.pem", signed.public_bytes(pem))
    write_durably(folder / "secret", secrets.token_hex(32).encode(), mode=0o600)


def make_node_key(path: Path) -> None:
    """Make a node's private key, and beside it the public one (.pub), which the SuperLink is told."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if path.exists():
        raise RunError(f"{path}: exists already; a key is never overwritten")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PrivateFormat.OpenSSH
    secret = key.private_bytes(serialization.Encoding.PEM, openssh, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_durably(path.with_name(f"{path.name}.pub"), public + b"\n")
    write_durably(path, secret, mode=0o600)  # last: with it, the pair is whole
