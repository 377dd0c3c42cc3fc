"""Passwords as a file may hold them: scrypt's hash with a salt of its own (RFC 7914), or the password itself."""

import hashlib
import hmac
import re
import secrets

SCHEME = "scrypt"
#: 16 MB and some 50 ms a guess.
COST, BLOCK, LANES = 2**14, 8, 1
HASH = re.compile(rf"{SCHEME}\$[0-9a-f]{{32}}\$[0-9a-f]{{64}}")


def hashed(password: str, salt: bytes | None = None) -> str:
    """scrypt$SALT$HASH, hexadecimal; another at every call unless the salt (16 bytes) is given."""
    salt = salt or secrets.token_bytes(16)
    found = hashlib.scrypt(password.encode("utf-8", "replace"), salt=salt, n=COST, r=BLOCK, p=LANES, dklen=32)
    return f"{SCHEME}${salt.hex()}${found.hex()}"


def matches(said: str, kept: str) -> bool:
    """Whether what somebody says is the password that is kept, as a hash or as it is; how far it is wrong takes no time."""
    if HASH.fullmatch(kept):
        said = hashed(said, bytes.fromhex(kept.split("$")[1]))
    return hmac.compare_digest(said.encode("utf-8", "replace"), kept.encode())
