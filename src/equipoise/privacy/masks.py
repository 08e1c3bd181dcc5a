"""Keys, seeds and the streams that hide a site's integers (Bonawitz et al. 2017, "Practical secure aggregation for
privacy-preserving machine learning").

    y_i = q(total_i) + stream(b_i) + sum_{j > i} stream(s_ij) - sum_{j < i} stream(s_ij)      modulo 2^64

s_ij is known to the sites i and j alone, b_i to i alone. In the sum over all sites the s_ij cancel; for a site that is
missing they are taken off with its key, for one that answered b_i is: never both of one site.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from equipoise.errors import Refusal
from equipoise.privacy.fixed_point import Integers

SEED = 32  # bytes of every seed and key
NONCE = 12  # of AES-GCM


def joined(*parts: bytes | str | int) -> bytes:
    """Parts in a row, each with its length, so that no two rows of parts give the same bytes."""
    coded = [p if isinstance(p, bytes) else str(p).encode() for p in parts]
    return b"".join(len(p).to_bytes(8, "big") + p for p in coded)


def commitment(seed: bytes) -> bytes:
    """By which everybody knows a seed again that is opened later; of 32 random bytes it says nothing."""
    return hashlib.sha256(joined("equipoise seed", seed)).digest()


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, *purpose: bytes | str | int) -> bytes:
    """The 32 bytes that two sites have in common, for one purpose; a Refusal where `public` is no key."""
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise Refusal("a member's key cannot be read") from None
    return HKDF(hashes.SHA256(), SEED, salt=None, info=joined("equipoise", *purpose)).derive(shared)


def stream(seed: bytes, count: int) -> Integers:
    """`count` integers of AES-256 in counter mode; the seed is used once, so the counter starts at zero."""
    encryptor = Cipher(algorithms.AES256(seed), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * count)), "<u8").astype(np.uint64, copy=False)


def add_pair_masks(integers: Integers, name: str, private: bytes, publics: Mapping[str, bytes], context: bytes) -> None:
    """Adds, in place, what `name` adds for the others.

    `context` is what all were sent, so that masks of sites that were sent different things do not cancel.
    """
    for other, public in publics.items():
        if other != name:
            seed = agreed(private, public, "pair mask", context, *sorted((name, other)))  # s_ij
            mask = stream(seed, len(integers))
            integers += mask if name < other else -mask


def hidden(
    integers: Integers, name: str, private: bytes, seed: bytes, publics: Mapping[str, bytes], context: bytes
) -> Integers:
    """y_i."""
    out = integers + stream(seed, len(integers))
    add_pair_masks(out, name, private, publics, context)
    return out


def seal(key: bytes, plain: bytes, context: bytes) -> bytes:
    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, plain, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """cryptography.exceptions.InvalidTag where it was sealed for something else, or changed."""
    return AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], context)


def digest_of(parts: Iterable[bytes | str | int]) -> bytes:
    return hashlib.sha256(joined(*parts)).digest()
