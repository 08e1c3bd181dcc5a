"""Certificates and keys for a trial: an authority of one's own, the server's certificate, a key for every site.

    ca.crt                  everybody has it: whom to believe
    ca.key                  its private key
    server.crt, server.key  the server's
    sites/NAME, NAME.pub    a site's private key, which only the site has, and its public one, which the server has

In earnest each site makes its own key (`ssh-keygen -t ecdsa -b 384 -N '' -f NAME`) and sends the public one only, and
the server's certificate comes from an authority that the sites trust.
"""

import datetime
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from equipoise.errors import require
from equipoise.files import write_whole

CA, SERVER, SERVER_KEY, SITES = "ca.crt", "server.crt", "server.key", "sites"


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
            form = serialization.PrivateFormat.OpenSSH
            _secret(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
            write_whole(
                path.with_name(f"{site}.pub"),
                key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH),
            )


def _certificates(folder: Path, hosts: list[str], days: int) -> None:
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    authority = trustme.CA(organization_name="Equipoise, for trials")
    server = authority.issue_cert(*hosts, common_name=hosts[-1], not_after=until)
    _secret(folder / "ca.key", authority.private_key_pem.bytes())
    _secret(folder / SERVER_KEY, server.private_key_pem.bytes())
    write_whole(folder / CA, authority.cert_pem.bytes())
    write_whole(folder / SERVER, b"".join(part.bytes() for part in server.cert_chain_pems))


def _secret(path: Path, content: bytes) -> None:
    """Readable by its owner only, from the beginning."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
