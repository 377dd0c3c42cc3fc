"""Whether the tests on a store ran on PostgreSQL too."""

import pytest
from support.databases import POSTGRES, REQUIRED

from rlhf_lab.store.database import Database


def test_the_database_of_the_environment_variable_is_postgresql() -> None:
    if not POSTGRES and not REQUIRED:
        pytest.skip("RLHF_LAB_POSTGRES is not set: the store is tested on SQLite only")
    assert POSTGRES, "RLHF_LAB_REQUIRE_POSTGRES=1, and RLHF_LAB_POSTGRES names no server"
    with Database.open(POSTGRES) as db, db.read() as conn:
        assert conn.dialect.name == "postgresql"
