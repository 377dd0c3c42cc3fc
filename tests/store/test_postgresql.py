"""Whether the tests on a store ran on PostgreSQL too, and what a transaction sees and waits for on both backends."""

from pathlib import Path

import pytest
from sqlalchemy import insert, select
from support.databases import POSTGRES, REQUIRED

from rlhf_lab.errors import BusyStoreError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database


def test_the_database_of_the_environment_variable_is_postgresql() -> None:
    if not POSTGRES and not REQUIRED:
        pytest.skip("RLHF_LAB_POSTGRES is not set: the store is tested on SQLite only")
    assert POSTGRES, "RLHF_LAB_REQUIRE_POSTGRES=1, and RLHF_LAB_POSTGRES names no server"
    with Database.open(POSTGRES) as db, db.read() as conn:
        assert conn.dialect.name == "postgresql"


def test_a_read_has_one_snapshot(db: Database) -> None:
    query = select(t.presence.c.who)
    with db.read() as reader:
        assert reader.execute(query).all() == []
        with db.write() as writer:
            writer.execute(insert(t.presence).values(who="ui", seen_at=1.0))
        assert reader.execute(query).all() == []
    assert db.fetch(query).scalars().all() == ["ui"]


def test_a_writer_that_waited_too_long_gets_a_busy_error(db: Database, home: Path) -> None:
    with (
        Database.open(home, busy_timeout_s=0.2) as other,
        db.write(),
        pytest.raises(BusyStoreError, match="another process kept it locked"),
        other.write(),
    ):
        pass
