"""Keys and certificates of a real federation: an authority, the SuperLink's certificate and the nodes' keys."""

import datetime
import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaccord.core.errors import RunError, SettingsError
from fedaccord.core.files import make_folder, read_up_to, write_durably


@dataclass(frozen=True)
class Link:
    """The address of the SuperLink, and the credentials for connecting to it."""

    address: str
    certificates: bytes | None  # those of the authority that signed the SuperLink's; None: plaintext
    key: Path | None = None  # a node's private key
    secret: bytes | None = None  # proves that runs are for this server to serve

    @property
    def place(self) -> tuple[str, bool, bytes | None]:
        """The address, whether the connection is in plaintext, and the certificates."""
        return self.address, self.certificates is None, self.certificates

    def key_pair(self) -> Any:
        """Return the node's private key, read from its file, and its public key; None if the link has no key."""
        if self.key is None:
            return None
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key

        try:
            key = load_ssh_private_key(read_up_to(self.key, LONGEST), None)
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise ValueError("it is of another kind than `fedaccord federation key` makes")
        except (OSError, ValueError, TypeError, NotImplementedError, UnsupportedAlgorithm) as error:
            raise SettingsError(f"{self.key}: not a private key of a node: {error}") from None
        return key, key.public_key()


LONGEST = 1 << 16
"""The largest size of a key or certificate file, in bytes."""
AUTHORITY, SUPERLINK = "fedaccord authority", "superlink"
HOST = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")


def make_authority(folder: Path, hosts: Sequence[str], days: int = 365) -> None:
    """Create a certificate authority, and a certificate for the SuperLink at these hosts.

    ca.pem is to be distributed, ca.key to be kept private; server.pem, server.key and secret are the SuperLink's.
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    names = names_of(hosts)
    make_folder(folder, mode=0o700)
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    write_durably(folder / "ca.key", private_pem(authority), mode=0o600)
    write_durably(folder / "server.key", private_pem(server), mode=0o600)
    write_durably(folder / "ca.pem", certificate(authority, authority, days))
    write_durably(folder / "server.pem", certificate(server, authority, days, names))
    write_durably(folder / "secret", secrets.token_hex(32).encode(), mode=0o600)


def renew(folder: Path, days: int = 365, hosts: Sequence[str] = ()) -> bool:
    """Create a new certificate for the SuperLink, for the hosts of the old one if none are given.

    The authority keeps its key, so nodes with the old ca.pem trust the new certificate too. If ca.pem would expire
    first, a new one is made and True is returned: it must reach all nodes before the old one expires.
    """
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    names = names_of(hosts) if hosts else None
    try:
        authority, server = (load_pem_private_key(read_up_to(folder / f"{name}.key", LONGEST), None) for name in KEYS)
        old = x509.load_pem_x509_certificate(read_up_to(folder / "server.pem", LONGEST))
        until = x509.load_pem_x509_certificate(read_up_to(folder / "ca.pem", LONGEST)).not_valid_after_utc
        known = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, NotImplementedError, UnsupportedAlgorithm, x509.ExtensionNotFound) as error:
        raise RunError(f"{folder}: not the keys of `fedaccord federation certificates`: {error}") from None
    short = until < datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    if short:
        write_durably(folder / "ca.pem", certificate(authority, authority, days))
    write_durably(folder / "server.pem", certificate(server, authority, days, known if names is None else names))
    return short


KEYS = ("ca", "server")


def private_pem(key: Any) -> bytes:
    """Return a private key as PEM, without a password."""
    from cryptography.hazmat.primitives import serialization

    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(pem, form, serialization.NoEncryption()))


def names_of(hosts: Sequence[str]) -> Any:
    """Return the SuperLink's host names and IP addresses as the alternative names of a certificate.

    Raise SettingsError for anything else, such as an address with a port.
    """
    from cryptography import x509

    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not HOST.fullmatch(host):
                raise SettingsError(
                    f"--host {host}: expected a name or an address, without a port; a name in ASCII (xn--...)"
                ) from None
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)


def certificate(key: Any, issuer: Any, days: int, hosts: Any = None) -> bytes:
    """Return a signed certificate as PEM: the SuperLink's for these hosts or, with None, the authority's own."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])

    now, is_authority = datetime.datetime.now(datetime.UTC), hosts is None
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only"), False
    )  # fmt: skip
    made = (
        x509.CertificateBuilder()
        .subject_name(name(AUTHORITY if is_authority else SUPERLINK))
        .issuer_name(name(AUTHORITY))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=min(0, days) - 1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=is_authority, crl_sign=is_authority, **usage), True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False)
    )
    if hosts is not None:
        made = made.add_extension(hosts, critical=False).add_extension(
            x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
    return bytes(made.sign(issuer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def make_node_key(path: Path) -> None:
    """Create a node's private key and, beside it, the public one (.pub), which is registered with the SuperLink."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if path.exists():
        raise RunError(f"{path}: exists already; a key is never overwritten")
    make_folder(path.parent, mode=0o700)
    key = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PrivateFormat.OpenSSH
    secret = key.private_bytes(serialization.Encoding.PEM, openssh, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_durably(path.with_name(f"{path.name}.pub"), public + b"\n")
    write_durably(path, secret, mode=0o600)  # last: where it exists, the pair is complete
