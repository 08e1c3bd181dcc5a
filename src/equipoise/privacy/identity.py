"""Who the sites are, by keys that they gave each other beforehand: what the server says of them counts for nothing.

The keys are those with which sites authenticate themselves (`equipoise flower keys`): ECDSA, in OpenSSH's format.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from equipoise.errors import InputError, refuse_unless, require
from equipoise.files import read_bytes
from equipoise.privacy.audit import Signer

SIGNATURE = ec.ECDSA(hashes.SHA384())


class Identity(NamedTuple):
    """A site's name and key, and the public keys of all sites that it knows."""

    name: str
    private: ec.EllipticCurvePrivateKey
    roster: Mapping[str, ec.EllipticCurvePublicKey]

    def sign(self, said: bytes) -> bytes:
        return self.private.sign(said, SIGNATURE)

    def check(self, name: str, said: bytes, signature: bytes) -> None:
        """A Refusal unless `name` has signed it."""
        refuse_unless(name in self.roster, f"'{self.name}' does not know the key of '{name}'")
        try:
            self.roster[name].verify(signature, said, SIGNATURE)
        except InvalidSignature:
            refuse_unless(False, f"what is said to be of '{name}' is not signed by its key")


def signer(key: Path) -> Signer:
    """For the log of the site that has this private key."""
    try:
        private = load_ssh_private_key(read_bytes(key), password=None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{key} cannot be read ({error}); make it with `ssh-keygen -t ecdsa`") from None
    require(isinstance(private, ec.EllipticCurvePrivateKey), f"{key} is no EC key; make it with `ssh-keygen -t ecdsa`")
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return Signer(lambda said: private.sign(said, SIGNATURE), checker(public), public)


def checker(public: bytes) -> Callable[[bytes, bytes], bool]:
    """Whether something was signed by whoever has this key."""
    try:
        key = load_ssh_public_key(public)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"the public key cannot be read ({error}); give the site's NAME.pub") from None
    require(isinstance(key, ec.EllipticCurvePublicKey), "the public key is no EC key; give the site's NAME.pub")
    assert isinstance(key, ec.EllipticCurvePublicKey)

    def check(said: bytes, signature: bytes) -> bool:
        try:
            key.verify(signature, said, SIGNATURE)
        except InvalidSignature:
            return False
        return True

    return check


def load(name: str, key: Path, roster: Path) -> Identity:
    """From a private key and a folder with NAME.pub of every site."""
    try:
        private = load_ssh_private_key(read_bytes(key), password=None)
        public = {path.stem: load_ssh_public_key(read_bytes(path)) for path in sorted(roster.glob("*.pub"))}
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"a key of '{name}' cannot be read ({error}); make it with `ssh-keygen -t ecdsa`") from None
    require(
        isinstance(private, ec.EllipticCurvePrivateKey)
        and all(isinstance(p, ec.EllipticCurvePublicKey) for p in public.values()),
        f"{key}, or a key of {roster}, is no EC key; make it with `ssh-keygen -t ecdsa`",
    )
    return Identity(name, private, public)  # type: ignore[arg-type]
