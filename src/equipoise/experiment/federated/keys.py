"""Certificates and keys for a trial: an authority of one's own, the server's certificate, a key for every site.

    ca.crt                  everybody has it: whom to believe
    ca.key                  its private key
    server.crt, server.key  the server's
    sites/NAME, NAME.pub    a site's private key, which only the site has, and its public one, which the server has

In earnest each site makes its own key (`ssh-keygen -t ecdsa -b 384 -N '' -f NAME`) and sends the public one only, and
the server's certificate comes from an authority that the sites trust.
"""

import datetime
import ipaddress
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from equipoise.errors import require
from equipoise.files import write_whole

CA, SERVER, SERVER_KEY, SITES = "ca.crt", "server.crt", "server.key", "sites"
PEM, OPENSSH = serialization.Encoding.PEM, serialization.Encoding.OpenSSH


def make(folder: Path, sites: Iterable[str], *, hosts: Sequence[str] = (), days: int = 30) -> None:
    """All of the above; keys that are there already stay, so that a site can be added later."""
    (folder / SITES).mkdir(parents=True, exist_ok=True)
    if not (folder / SERVER).is_file():
        _certificates(folder, [*dict.fromkeys(["localhost", "127.0.0.1", *hosts])], days)
    for site in sites:
        path = folder / SITES / site
        require(path.parent == folder / SITES and site not in ("", ".", ".."), f"'{site}' is no name for a file")
        if not path.is_file():
            key = ec.generate_private_key(ec.SECP384R1())
            _secret(path, key, serialization.PrivateFormat.OpenSSH)
            write_whole(
                path.with_name(f"{site}.pub"),
                key.public_key().public_bytes(OPENSSH, serialization.PublicFormat.OpenSSH),
            )


def _certificates(folder: Path, hosts: list[str], days: int) -> None:
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    us = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Equipoise, for trials")])
    now = datetime.datetime.now(datetime.UTC)

    def signed(name: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(us)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        )

    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    root = signed(us, authority, ca=True).add_extension(usage, critical=True).sign(authority, hashes.SHA384())
    named = x509.SubjectAlternativeName([_host(host) for host in hosts])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[-1])])
    leaf = signed(subject, server, ca=False).add_extension(named, critical=False).sign(authority, hashes.SHA384())
    _secret(folder / "ca.key", authority, serialization.PrivateFormat.PKCS8)
    _secret(folder / SERVER_KEY, server, serialization.PrivateFormat.PKCS8)
    write_whole(folder / CA, root.public_bytes(PEM))
    write_whole(folder / SERVER, leaf.public_bytes(PEM))


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _secret(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    """Readable by its owner only, from the beginning."""
    content = key.private_bytes(PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
