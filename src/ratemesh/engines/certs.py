"""A private certificate authority and one certificate a site, for trying things out and for small private meshes."""

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratemesh.errors import InputError

DAYS = 825
CLOCKS_MAY_DIFFER = datetime.timedelta(days=1)
"""Certificates are valid a day before they were made: a site's clock may be late."""


def init(folder: Path, sites: Sequence[str], days: int = DAYS) -> list[Path]:
    """Make `ca.pem`, and `NAME.pem` with `NAME.key` for every site; return the files.

    The authority's own key is in `ca.key`: with it more certificates can be made, so it stays off the sites. A folder
    that holds an authority already is used again, certificates that are there are left alone.
    """
    for site in sites:
        if not site or not all(c.isalnum() or c in "-_." for c in site) or site == "ca":
            raise InputError(f"sites must be names of letters, digits, '-', '_' and '.', not 'ca'; got '{site}'.")
    if len(set(sites)) != len(sites):
        raise InputError(f"sites must be different; got {list(sites)}. A name is an identity.")
    folder.mkdir(parents=True, exist_ok=True)
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    if ca.exists() != ca_key.exists():
        raise InputError(f"'{folder}' must hold ca.pem and ca.key, or neither. Take an empty folder.")
    if not ca.exists():
        _issue(folder, "ca", None, days)
    for site in sites:
        if not (folder / f"{site}.pem").exists():
            _issue(folder, site, (ca, ca_key), days)
    return [ca, *(folder / f"{site}{end}" for site in sites for end in (".pem", ".key"))]


def _issue(folder: Path, name: str, issuer: tuple[Path, Path] | None, days: int) -> None:
    """Make a key and a certificate for `name`, signed by the issuer or by itself."""
    x509, hashes, serialization, ec = _cryptography()
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    signer, signed_by = key, subject
    if issuer:
        signed_by = x509.load_pem_x509_certificate(issuer[0].read_bytes()).subject
        signer = serialization.load_pem_private_key(issuer[1].read_bytes(), password=None)
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signed_by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_MAY_DIFFER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write_secret(folder / f"{name}.key", secret)
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _cryptography() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise InputError(
            "certificates must be made with the package cryptography; it is not installed. "
            "Get it with: pip install 'ratemesh[zenoh]'"
        ) from None
    return x509, hashes, serialization, ec
