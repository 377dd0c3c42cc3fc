"""Hashes and verifies passwords, which are stored as salted scrypt hashes (RFC 7914) or in plain text."""

import hashlib
import hmac
import re
import secrets

SCHEME = "scrypt"
#: Cost parameters: 16 MB and about 50 ms per hash.
SCRYPT_N, SCRYPT_R, SCRYPT_P = 2**14, 8, 1
HASH_PATTERN = re.compile(rf"{SCHEME}\$[0-9a-f]{{32}}\$[0-9a-f]{{64}}")


def hash_password(password: str, salt: bytes | None = None) -> str:
    """The hash as scrypt$SALT$HASH, in hexadecimal. salt: 16 bytes, random by default."""
    salt = salt or secrets.token_bytes(16)
    digest = hashlib.scrypt(
        password.encode("utf-8", "replace"), salt=salt, n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P, dklen=32
    )
    return f"{SCHEME}${salt.hex()}${digest.hex()}"


def verify_password(password: str, stored: str) -> bool:
    """Whether a password matches a stored hash or plain password, compared in constant time. Both take as long."""
    is_hash = HASH_PATTERN.fullmatch(stored) is not None
    hashed = hash_password(password, bytes.fromhex(stored.split("$")[1]) if is_hash else None)
    return hmac.compare_digest((hashed if is_hash else password).encode("utf-8", "replace"), stored.encode())
