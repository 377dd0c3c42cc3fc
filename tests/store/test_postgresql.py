"""Whether the tests of this folder also ran on PostgreSQL."""

import os

import pytest

from rlhf_lab.store.database import Database

POSTGRES = os.environ.get("RLHF_LAB_POSTGRES")


@pytest.mark.skipif(not POSTGRES, reason="RLHF_LAB_POSTGRES is not set: the store is tested on SQLite only")
def test_the_database_named_is_postgresql() -> None:
    assert POSTGRES
    with Database.open(POSTGRES) as db, db.read() as conn:
        assert conn.dialect.name == "postgresql"
