"""A database of each released schema opens, and reads as it was written.

schemas/NNNN.sql was made by the migrations up to that revision and has the same rows each time; it is never
regenerated, so a later change of a migration does not change it. Every new revision gets its own file. The oldest one is
there for PostgreSQL, too: all migrations run on it.
"""

import pytest
from support.databases import POSTGRES, SCHEMAS, create_old_database, empty_database

from rlhf_lab.backup.archive import restore_backup, write_backup
from rlhf_lab.common.enums import Choice, RunStatus, Source
from rlhf_lab.common.paths import STORE_VARIABLE
from rlhf_lab.store import migrations, projects, reward_models, votes
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import metric_series
from rlhf_lab.store.runs import get_run

NAMES = sorted(path.stem for path in SCHEMAS.glob("*.sql"))


@pytest.fixture(params=NAMES)
def old_home(request, tmp_path, monkeypatch):
    revision, _, server = request.param.partition(".")
    home = tmp_path / "home"
    home.mkdir()
    url = f"sqlite:///{home / 'lab.db'}"
    if server:
        if not POSTGRES:
            pytest.skip("RLHF_LAB_POSTGRES names no database")
        url = empty_database("old")
        monkeypatch.setenv(STORE_VARIABLE, url)
    create_old_database(url, revision)
    return home


def test_every_revision_has_a_file():
    assert [name for name in NAMES if "." not in name] == sorted(migrations.revisions())


def check_lab(home):
    with Database.open(home) as db:
        with db.read() as conn:
            assert conn.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == migrations.revisions()[0]
            if conn.dialect.name == "sqlite":
                assert conn.exec_driver_sql("PRAGMA foreign_key_check").fetchall() == []
                assert conn.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        project = projects.current_project(db)
        assert (project.id, project.name, project.model, project.prompt_set, project.seed) == (
            1,
            "Tales",
            "embedded",
            "tales",
            7,
        )
        texts = [prompt.text for split in ("train", "eval") for prompt in projects.prompts(db, 1, split)]
        assert texts == ["Once upon a time", 'Élodie said: "it\'s late"']
        history = {vote.uuid: (vote, pair) for name in ("Ann", "Bob") for vote, pair in votes.vote_history(db, 1, name)}
        vote, pair = history["u-1"]
        assert (vote.annotator, vote.choice, vote.first_on_left, vote.response_ms, vote.created_at) == (
            "Ann", Choice.FIRST, True, 900, 1020.0,
        )  # fmt: skip
        assert (pair.id, pair.first.text, pair.second.text) == (1, " text 1", " text 2")
        assert (pair.first.token_ids, pair.first.seed) == ((1, 1), 2**62 + 1)
        assert history["u-2"][0].choice is Choice.TIE
        assert history["u-2"][1].second.checkpoint == "run/1/2"
        undone = votes.find_vote(db, "u-3")
        assert (undone.choice, undone.undone_at) == (Choice.SECOND, 1023.0)
        counts = votes.vote_counts(db, 1)
        assert {choice: n for choice, n in counts[Source.HUMAN].items() if n} == {Choice.FIRST: 1, Choice.TIE: 1}
        assert {choice: n for choice, n in counts[Source.SIMULATED].items() if n} == {Choice.BOTH_BAD: 1}
        model = reward_models.get_reward_model(db, 1)
        assert (model.path, model.snapshot.vote_ids, model.snapshot.digest) == ("reward_models/m", (1, 2), "d" * 64)
        run = get_run(db, 1)
        assert (run.name, run.status, run.step, run.reward_model_id) == ("first", RunStatus.DONE, 2, 1)
        assert metric_series(db, 1, ["objective/kl"])["objective/kl"][0] == (1, 0.25)


def test_it_opens_and_reads_the_same(old_home):
    check_lab(old_home)


@pytest.mark.parametrize("old_home", ["0009"], indirect=True)
def test_a_backup_of_it_is_restored(old_home, tmp_path):
    """A backup made by an older version of the lab: its database is migrated before it is moved into place."""
    manifest = write_backup(old_home, tmp_path / "old.zip")
    assert manifest.schema_revision < migrations.revisions()[0]
    restore_backup(tmp_path / "old.zip", tmp_path / "new")
    check_lab(tmp_path / "new")
