"""Passwords as a file may hold them: scrypt's hash with a salt of its own (RFC 7914), or the password itself."""

import hashlib
import hmac
import re
import secrets

SCHEME = "scrypt"
#: 16 MB and some 50 ms a guess.
SCRYPT_N, SCRYPT_R, SCRYPT_P = 2**14, 8, 1
HASH_PATTERN = re.compile(rf"{SCHEME}\$[0-9a-f]{{32}}\$[0-9a-f]{{64}}")


def hash_password(password: str, salt: bytes | None = None) -> str:
    """scrypt$SALT$HASH, hexadecimal; another at every call unless the salt (16 bytes) is given."""
    salt = salt or secrets.token_bytes(16)
    digest = hashlib.scrypt(
        password.encode("utf-8", "replace"), salt=salt, n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P, dklen=32
    )
    return f"{SCHEME}${salt.hex()}${digest.hex()}"


def verify_password(password: str, stored: str) -> bool:
    """Whether what somebody says is the password that is kept, as a hash or as it is; how far it is wrong takes no time."""
    if HASH_PATTERN.fullmatch(stored):
        password = hash_password(password, bytes.fromhex(stored.split("$")[1]))
    return hmac.compare_digest(password.encode("utf-8", "replace"), stored.encode())
