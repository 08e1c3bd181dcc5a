"""Who the sites are, by keys that they gave each other beforehand: what the server says of them counts for nothing.

The keys are those with which sites authenticate themselves (`equipoise flower keys`): ECDSA, in OpenSSH's format.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from equipoise.errors import InputError, refuse_unless
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

    @property
    def at_rest(self) -> bytes:
        """The key with which the site seals what it keeps for itself."""
        secret = self.private.private_numbers().private_value.to_bytes(72)
        return HKDF(hashes.SHA256(), 32, salt=None, info=b"equipoise, masks at rest").derive(secret)

    def check(self, name: str, said: bytes, signature: bytes) -> None:
        """A Refusal unless `name` has signed it."""
        refuse_unless(name in self.roster, f"'{self.name}' does not know the key of '{name}'")
        signed = is_signed(self.roster[name], said, signature)
        refuse_unless(signed, f"what is said to be of '{name}' is not signed by its key")


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_ssh_private_key(read_bytes(path), password=None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path} cannot be read ({error}); make it with `ssh-keygen -t ecdsa`") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path} is no EC key; make one: ssh-keygen -t ecdsa -b 256 -N '' -f {path.name}")
    return key


def public_key(content: bytes, where: object = "the public key") -> ec.EllipticCurvePublicKey:
    try:
        key = load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{where} holds no public key ({error}); give the NAME.pub that ssh-keygen wrote") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InputError(f"{where} is no EC key; make one: ssh-keygen -t ecdsa -b 256")
    return key


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())  # checked at every request; P-384 takes eight times as long


def private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    """As OpenSSH writes it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """As OpenSSH writes it."""
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def signer(key: Path) -> Signer:
    """For the log of the site that has this private key."""
    private = private_key(key)
    public = public_bytes(private.public_key())
    return Signer(lambda said: private.sign(said, SIGNATURE), checker(public), public)


def signer_of(node: Mapping[str, object]) -> Signer | None:
    """For the log of a site, by its node's configuration; None: it has no key."""
    return signer(Path(str(node["key"]))) if node.get("key") else None


def is_signed(key: ec.EllipticCurvePublicKey, said: bytes, signature: bytes) -> bool:
    try:
        key.verify(signature, said, SIGNATURE)
    except InvalidSignature:
        return False
    return True


def checker(public: bytes) -> Callable[[bytes, bytes], bool]:
    """Whether something was signed by whoever has this key."""
    return partial(is_signed, public_key(public))


def load(name: str, key: Path, roster: Path) -> Identity:
    """From a private key and a folder with NAME.pub of every site."""
    public = {path.stem: public_key(read_bytes(path), path) for path in sorted(roster.glob("*.pub"))}
    return Identity(name, private_key(key), public)
