"""Certificates and keys: who is believed, and who may join under which name.

    ca.crt                  everybody has it: whom to believe
    server.crt, server.key  the server's
    sites/NAME, NAME.pub    a site's private key, which only the site has, and its public one, which the server has
    revoked/                keys that are not taken any longer, private ones too where they were made here

`make` is for trials: it makes an authority of one's own, the server's certificate and a key for every site. The
authority's private key is not kept: whoever had it could pass for the server. In earnest each site makes its own key
(`ssh-keygen -t ecdsa -b 256 -N '' -f NAME`) and sends the public one only, which `add` registers under its name, and
the server's certificate comes from an authority that the sites trust.
"""

import base64
import datetime
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from equipoise.errors import FileError, InputError, require
from equipoise.files import check_place, make_folder, reason, write_whole

CA, CA_KEY, SERVER, SERVER_KEY, SITES = "ca.crt", "ca.key", "server.crt", "server.key", "sites"
REVOKED = "revoked"


def make(folder: Path, sites: Iterable[str], *, hosts: Sequence[str] = (), days: int = 30) -> None:
    """All of the above; keys that are there already stay, so that a site can be added later."""
    sites = list(sites)
    check_place(folder / SITES)
    for site in sites:
        _check_file_name(site)
        path, public = folder / SITES / site, folder / SITES / f"{site}.pub"
        require(not path.is_dir(), f"{path} is a folder; give the site another name")
        require(
            path.is_file() or not os.path.lexists(public),
            f"{public} is there without {path}: that site has made its own key, which is not replaced; leave the site "
            "out",
        )
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
        if not (folder / SITES / site).is_file():
            _make_key(folder / SITES / site)


def _make_key(path: Path) -> None:
    from equipoise.privacy import identity

    key = identity.new_key()
    _write_secret(path, identity.private_bytes(key))
    write_whole(path.with_name(f"{path.name}.pub"), identity.public_bytes(key.public_key()))


def _public(path: Path) -> bytes:
    """The public key of a file, as it is written to one."""
    from equipoise.privacy import identity

    require(path.is_file(), f"there is no file {path}")
    return identity.public_bytes(identity.public_key(path.read_bytes(), path))


def fingerprint(public: bytes) -> str:
    """As `ssh-keygen -l` shows it."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def names(folder: Path) -> dict[str, str]:
    """Who may join, with the fingerprint of its key; says if one key has two names, or was revoked."""
    registered = {path.stem: fingerprint(_public(path)) for path in sorted((folder / SITES).glob("*.pub"))}
    gone, owners = _revoked(folder), dict[str, str]()
    for name, print_ in registered.items():
        other = owners.setdefault(print_, name)
        require(other == name, f"'{other}' and '{name}' have the same key in {folder / SITES}; each needs its own")
        require(print_ not in gone, f"the key of '{name}' in {folder / SITES} was revoked; register another one")
    return registered


def _revoked(folder: Path) -> set[str]:
    return {fingerprint(_public(path)) for path in (folder / REVOKED).glob("*.pub")}


def add(folder: Path, name: str, file: Path) -> None:
    """Registers the public key that a site has made itself, under its name."""
    require(
        not os.path.lexists(folder / SITES / f"{name}.pub"),
        f"'{name}' has a key already; to take another one from now on: --rotate {name}={file}",
    )
    public = _acceptable(folder, name, file)
    make_folder(folder / SITES)
    write_whole(folder / SITES / f"{name}.pub", public)


def _acceptable(folder: Path, name: str, file: Path) -> bytes:
    _check_file_name(name)
    public = _public(file)
    owners = {print_: other for other, print_ in names(folder).items()}
    print_ = fingerprint(public)
    require(print_ not in owners, f"{file} is the key of '{owners.get(print_)}'; each site needs a key of its own")
    require(print_ not in _revoked(folder), f"{file} is a key that was revoked; let the site make a new one")
    return public


def revoke(folder: Path, name: str) -> None:
    """From now on nobody can join with the site's key; a server that runs sees it within a second."""
    public = folder / SITES / f"{name}.pub"
    require(public.is_file(), f"{folder / SITES} has no key of '{name}'; it has {', '.join(names(folder)) or 'none'}")
    digest = hashlib.sha256(_public(public)).hexdigest()[:12]
    make_folder(folder / REVOKED)
    try:
        os.replace(public, folder / REVOKED / f"{name}-{digest}.pub")
        if (folder / SITES / name).is_file():
            os.replace(folder / SITES / name, folder / REVOKED / f"{name}-{digest}")
    except OSError as error:
        raise FileError(f"the key of '{name}' cannot be moved to {folder / REVOKED} ({reason(error)})") from error


def rotate(folder: Path, name: str, file: Path | None = None) -> None:
    """Another key for a site: one that it made, or one that is made here for a trial; the old one is revoked."""
    public = None if file is None else _acceptable(folder, name, file)
    revoke(folder, name)
    if public is None:
        _make_key(folder / SITES / name)
    else:
        write_whole(folder / SITES / f"{name}.pub", public)


def holders(folder: Path) -> list[str]:
    """Who holds what, a sentence each."""
    registered = names(folder)
    made_here = [name for name in registered if (folder / SITES / name).is_file()]
    out = [f"{name} joins with the key {print_}" for name, print_ in registered.items()]
    out.append(f"the server gets {CA}, {SERVER}, {SERVER_KEY} and {SITES}/*.pub, and no other file")
    out.append(f"each site gets {CA}, {SITES}/*.pub (for masked sums) and its own private key, {SITES}/NAME")
    if made_here:
        private = ", ".join(f"{SITES}/{name}" for name in made_here)
        out.append(f"hand each private key to its site alone, and delete it here: {private}")
    if (folder / CA_KEY).is_file():
        out.append(f"{CA_KEY}, with which anybody passes for the server, is nobody's: delete it, or lock it away")
    else:
        out.append("the authority's private key was not kept: nobody can make another certificate in its name")
    return out


def _check_file_name(site: str) -> None:
    plain = re.fullmatch(r"[^/\\\0]{1,200}", site) and site not in (".", "..") and not site.endswith(".pub")
    require(plain, f"{site!r} cannot name the file of a key; give another name, such as north")


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
