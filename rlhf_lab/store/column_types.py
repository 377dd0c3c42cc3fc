"""Column types (ids, foreign keys, enums, JSON) and the naming convention of keys and indices."""

import json
import zlib
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Column, Dialect, Enum, ForeignKey, Integer, LargeBinary, Table, Text
from sqlalchemy.types import TypeDecorator

from rlhf_lab.common.text import cut_middle

MAX_MESSAGE_CHARS = 1000

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

#: An integer of 63 bits, for seeds. SQLite's INTEGER has up to 64.
LONG = BigInteger().with_variant(Integer, "sqlite")


class Json(TypeDecorator[Any]):
    """JSON as text. sqlalchemy.JSON is not used because PostgreSQL's json rejects NaN, which a diverging run reports."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else json.loads(value)


class PlainText(TypeDecorator[str]):
    """A text. Texts of models and messages of libraries may hold a NUL character, which PostgreSQL does not store: it is replaced
    in both kinds of database."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else value.replace("\0", "\N{REPLACEMENT CHARACTER}")


class Message(PlainText):
    """A text for people, such as an error; a long one is cut. Errors of others (own functions, libraries) may have megabytes, and
    every look at a screen would send them."""

    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return super().process_bind_param(value and cut_middle(value, MAX_MESSAGE_CHARS), dialect)


class PackedJson(TypeDecorator[Any]):
    """Compressed JSON, for large values that are read one row at a time."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes:  # noqa: ARG002
        return zlib.compress(json.dumps(value, separators=(",", ":")).encode())

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        return json.loads(zlib.decompress(value))


def enum_type(enum_class: type[StrEnum]) -> Enum:
    return Enum(
        enum_class, native_enum=False, length=20, values_callable=lambda members: [member.value for member in members]
    )


def table_without_id_reuse(name: str, *columns: Any) -> Table:
    """A table that never reuses the id of a deleted row, not even on SQLite."""
    return Table(name, *columns, sqlite_autoincrement=True)


def id_column() -> Column[int]:
    return Column("id", Integer, primary_key=True)


def required(name: str, column_type: Any, **options: Any) -> Column[Any]:
    return Column(name, column_type, nullable=False, **options)


def foreign_key(name: str, target: str, **options: Any) -> Column[Any]:
    return Column(name, Integer, ForeignKey(f"{target}.id", ondelete=options.pop("ondelete", None)), **options)
