"""The file of people who enter by a password: NAME:PASSWORD or NAME:PASSWORD:operator a line.

Empty lines and those that begin with # are left out. A password may be as it is, or what `python -m rlhf_lab password` prints;
it may hold colons, so whoever wants one that ends in ":operator" hashes it.
"""

from dataclasses import dataclass, field
from pathlib import Path

from rlhf_lab import passwords
from rlhf_lab.errors import ConfigError
from rlhf_lab.labelling import Role
from rlhf_lab.store.people import MAX_NAME, NOT_NAMES, OPERATOR

MAX_BYTES = 1_000_000
IS_OPERATOR = f":{OPERATOR}"


@dataclass(frozen=True)
class Entry:
    """A line: somebody's name, what they may do, and their password as it stands there."""

    name: str
    role: Role
    password: str = field(repr=False)


def read_people(path: Path) -> dict[str, Entry]:
    """The people in a file by their names. Raises ConfigError with the line's number for what cannot be read."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} is too long for a file of names and passwords. Is it the right one?")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The file {path} cannot be read ({error}). Give one with a line NAME:PASSWORD each."
        ) from error
    found = dict[str, Entry]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            entry = _entry(line.strip())
            if entry.name in found:
                raise ConfigError(f'"{entry.name}" stands there twice; names are given once.')
        except ConfigError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
        found[entry.name] = entry
    if not found:
        raise ConfigError(f"{path} names nobody. Write a line NAME:PASSWORD for each who may enter.")
    return found


def _entry(line: str) -> Entry:
    name, colon, rest = line.partition(":")
    name, password = " ".join(name.split()), rest.removesuffix(IS_OPERATOR)
    if not colon or not password:
        raise ConfigError("there is no password. Write NAME:PASSWORD, and :operator behind it for who runs the lab.")
    if not name or len(name) > MAX_NAME or not name.isprintable() or name.startswith(NOT_NAMES) or name == OPERATOR:
        reserved = ", ".join(f'"{one}"' for one in NOT_NAMES)
        raise ConfigError(
            f"the name has to be of 1 to {MAX_NAME} letters that can be seen, not begin with {reserved}, and not be "
            f'"{OPERATOR}", who comes by the link.'
        )
    if password.startswith(f"{passwords.SCHEME}$") and not passwords.HASH.fullmatch(password):
        raise ConfigError("the hash is not whole. Make it anew: python -m rlhf_lab password.")
    return Entry(name, Role.OPERATOR if rest.endswith(IS_OPERATOR) else Role.LABELLER, password)
