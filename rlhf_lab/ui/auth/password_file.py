"""The password file: a line NAME:PASSWORD or NAME:PASSWORD:operator for each person.

Empty lines and those that begin with # are skipped. A password is in plain text, or the hash that `python -m rlhf_lab password`
prints. It may contain colons; one that ends in ":operator" must be hashed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_lab.common import passwords
from rlhf_lab.common.paths import regular_file
from rlhf_lab.common.person_names import has_invisible, normalize_name
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.common.records import Role
from rlhf_lab.common.text import split_lines
from rlhf_lab.errors import ConfigError
from rlhf_lab.store.annotators import MAX_PERSON_NAME_CHARS, OPERATOR_NAME, RESERVED_PREFIXES

MAX_BYTES = 1_000_000
OPERATOR_SUFFIX = f":{OPERATOR_NAME}"


@dataclass(frozen=True)
class PasswordEntry:
    """One line of the file. password: plain text or hash, as in the file."""

    name: str
    role: Role
    password: str = field(repr=False)


def read_password_file(path: Path) -> dict[str, PasswordEntry]:
    """The entries by name. Raises ConfigError with the number of the line that cannot be read."""
    try:
        if regular_file(path).stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} is too long for a file of names and passwords. Check that it is the right file.")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The file {path} cannot be read ({error}). It needs one line NAME:PASSWORD per person."
        ) from error
    entries = dict[str, PasswordEntry]()
    for line_number, line in enumerate(split_lines(text), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            entry = _parse_line(line.strip())
            if entry.name in entries:
                raise ConfigError(f'"{entry.name}" occurs twice. Each name may occur once.')
        except ConfigError as error:
            raise ConfigError(f"{path}, line {line_number}: {error}") from None
        entries[entry.name] = entry
    if not entries:
        raise ConfigError(f"{path} contains no names. Write one line NAME:PASSWORD per person.")
    return entries


def find_entry(entries: Mapping[str, PasswordEntry], name: str) -> PasswordEntry | None:
    """The entry for a typed name: one with exactly this name, else one that differs only in its Unicode normalization form."""
    typed = normalize_name(name)
    same_form = (entry for entry in entries.values() if normalize_name(entry.name) == typed)
    return entries.get(" ".join(name.split())) or next(same_form, None)


def _parse_line(line: str) -> PasswordEntry:
    name, colon, rest = line.partition(":")
    name, password = " ".join(name.split()), rest.removesuffix(OPERATOR_SUFFIX)
    if not colon or not password:
        raise ConfigError("there is no password. Write NAME:PASSWORD, followed by :operator for an operator.")
    if (
        not name
        or len(name) > MAX_PERSON_NAME_CHARS
        or not name.isprintable()
        or has_invisible(name)
        or name.startswith(RESERVED_PREFIXES)
        or name == OPERATOR_NAME
    ):
        reserved = ", ".join(f'"{prefix}"' for prefix in RESERVED_PREFIXES)
        raise ConfigError(
            f"the name must have 1 to {MAX_PERSON_NAME_CHARS} visible characters, must not begin with {reserved}, and "
            f'must not be "{OPERATOR_NAME}", the name of the person who uses the operator\'s link.'
        )
    if password.startswith(f"{passwords.SCHEME}$") and not passwords.HASH_PATTERN.fullmatch(password):
        raise ConfigError(f"the hash is incomplete. Create a new one: {lab_command()} password.")
    return PasswordEntry(name, Role.OPERATOR if rest.endswith(OPERATOR_SUFFIX) else Role.LABELLER, password)
