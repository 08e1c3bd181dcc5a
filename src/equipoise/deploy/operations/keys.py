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
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from equipoise.errors import FileError, InputError, require
from equipoise.files import check_place, make_folder, reason, write_whole

CA, CA_KEY, SERVER, SERVER_KEY, SITES = "ca.crt", "ca.key", "server.crt", "server.key", "sites"


def make(folder: Path, sites: Iterable[str], *, hosts: Sequence[str] = (), days: int = 30) -> None:
    """All of the above; keys that are there already stay, so that a site can be added later."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    sites = list(sites)
    check_place(folder / SITES)
    for site in sites:
        _check_name(folder / SITES, site)
    issued = {}
    if not (folder / SERVER).is_file():
        there = [name for name in (CA, CA_KEY, SERVER_KEY) if os.path.lexists(folder / name)]
        require(
            not there,
            f"{folder} has {', '.join(there)} but no {SERVER}, and none of it is replaced; remove it if a trial left "
            "it, or give another folder",
        )
        issued = _certificates([*dict.fromkeys(["localhost", "127.0.0.1", *hosts])], days)
    make_folder(folder / SITES)
    for name, content in issued.items():
        (_write_secret if name.endswith(".key") else write_whole)(folder / name, content)
    for site in sites:
        path = folder / SITES / site
        if not path.is_file():
            key = ec.generate_private_key(ec.SECP384R1())
            form = serialization.PrivateFormat.OpenSSH
            _write_secret(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
            write_whole(
                path.with_name(f"{site}.pub"),
                key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH),
            )


def _check_name(folder: Path, site: str) -> None:
    plain = re.fullmatch(r"[^/\\\0]{1,200}", site) and site not in (".", "..") and not site.endswith(".pub")
    require(plain, f"{site!r} cannot name the file of a key; give another name, such as north")
    path, public = folder / site, folder / f"{site}.pub"
    require(not path.is_dir(), f"{path} is a folder; give the site another name")
    require(
        path.is_file() or not os.path.lexists(public),
        f"{public} is there without {path}: that site has made its own key, which is not replaced; leave the site out",
    )


def _certificates(hosts: list[str], days: int) -> dict[str, bytes]:
    """What is in each file, in the order to write them: with the server's certificate they are whole."""
    import trustme

    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    authority = trustme.CA(organization_name="Equipoise, for trials")
    try:
        server = authority.issue_cert(*hosts, common_name=hosts[-1], not_after=until)
    except ValueError as error:
        given = ", ".join(map(repr, hosts[2:]))
        raise InputError(f"no certificate can be made for --host {given} ({error}); give names or addresses") from error
    return {
        CA_KEY: authority.private_key_pem.bytes(),
        SERVER_KEY: server.private_key_pem.bytes(),
        CA: authority.cert_pem.bytes(),
        SERVER: b"".join(part.bytes() for part in server.cert_chain_pems),
    }


def _write_secret(path: Path, content: bytes) -> None:
    """Readable by its owner only, from the beginning; what is there already is never replaced."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
    except OSError as error:
        raise FileError(f"{path} cannot be written ({reason(error)})") from error
