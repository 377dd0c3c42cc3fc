"""Saving to a repository on the Hub and restoring from it, with the real client and a local Hub server."""

import hashlib
import json
import sqlite3
from contextlib import closing

import pytest
from support.backup_homes import add_checkpoint
from support.mirror_hub import READ_TOKEN, MirrorHub

from rlhf_lab.backup.hub_mirror import HubMirror
from rlhf_lab.backup.hub_repository import HubRepository
from rlhf_lab.backup.mirror_records import read_state
from rlhf_lab.backup.snapshot import CheckpointRule
from rlhf_lab.common import checkpoint_index
from rlhf_lab.common.enums import Choice, EngineState, JobKind, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.errors import ConfigError, DataError, HubUnavailableError, MirrorConflictError, MirrorError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.store import projects, votes
from rlhf_lab.store.database import Database, lab_exists

#: The client passes the content of uploads to httpx2 by a parameter of an older name.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
NAME = "someone/lab"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    server = MirrorHub(tmp_path / "hub")
    with server.use(monkeypatch, tmp_path / "cache").running():
        yield server


def mirror_of(home, **options):
    """The mirror that a page creates at its start."""
    return HubMirror(home, HubRepository(NAME), **options)


@pytest.fixture
def mirror(home, hub):
    return mirror_of(home)


def vote_again(home, name):
    """Add a vote."""
    with Database.open(home) as db:
        votes.cast_vote(db, Vote(f"uuid-{name}", 1, name, Source.HUMAN, Choice.SECOND, True))


def saved_rows(hub, tmp_path, query, commit=None):
    file = tmp_path / "saved.db"
    file.write_bytes(hub.content("lab.db", commit))
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(query).fetchall()


VOTERS = "SELECT annotator FROM votes ORDER BY id"


def test_the_first_save_makes_a_private_repository_with_the_files_of_a_snapshot_and_a_manifest(mirror, hub, tmp_path):
    assert mirror.save()
    assert hub.is_private
    files = hub.commit()["files"]
    assert sorted(files) == sorted(
        [
            "lab.db",
            "manifest.json",
            "reward_models/m/report.json",
            "reward_models/m/reward_head.safetensors",
            "rewards/mine.py",
            *(f"runs/1/step-000003/{n}" for n in ("adapter_model.safetensors", "state.json", "trainer.safetensors")),
            *(f"runs/1/step-000001/{n}" for n in ("adapter_model.safetensors", "state.json")),
            "speed.json",
        ]
    )
    manifest = json.loads(hub.content("manifest.json"))
    assert {path: entry["sha256"] for path, entry in manifest["files"].items()} == {
        path: digest for path, digest in files.items() if path != "manifest.json"
    }
    assert manifest["schema"] == "0021"
    assert saved_rows(hub, tmp_path, VOTERS) == [("Ann",)] * 3
    assert not (mirror.home / ".mirror").exists()


def test_a_save_without_changes_commits_nothing_and_heartbeats_are_no_changes(mirror, hub, home):
    with Database.open(home) as db:
        engine_process.record_heartbeat(db, "idle")
        assert mirror.save()
        head = hub.head
        engine_process.record_heartbeat(db, "works on something longer", device="cpu", memory_mib=3.5)
        engine_process.touch_ui(db)
        first_saved_at = mirror.state.saved_at
        assert not mirror.save()
    assert hub.head == head
    assert mirror.state.saved_at > first_saved_at


def test_only_changed_files_are_sent_and_files_that_are_gone_are_deleted(mirror, hub, home):
    mirror.save()
    before = hub.commit()["files"]
    add_checkpoint(home, 1, 4, best=4)
    hub.stages.clear()
    assert mirror.save()
    after = hub.commit()["files"]
    assert {path.split("/")[2] for path in after if path.startswith("runs/")} == {"step-000004"}
    assert {path for path in before if before[path] == after.get(path)} == {
        path for path in before if not path.startswith("runs/") and path != "manifest.json"
    }
    assert hub.stages.count("commit") == 1


def test_all_checkpoints_are_saved_where_that_is_chosen(home, hub):
    mirror_of(home, checkpoints=CheckpointRule.ALL).save()
    steps = {path.split("/")[2] for path in hub.commit()["files"] if path.startswith("runs/")}
    assert steps == {"step-000001", "step-000002", "step-000003"}


def test_everything_stored_before_saved_at_is_in_the_save(mirror, hub, home, tmp_path, monkeypatch):
    real = hub.next_fault

    def vote_during_the_commit(stage):
        if stage == "commit":
            vote_again(home, "Late")
        return real(stage)

    monkeypatch.setattr(hub, "next_fault", vote_during_the_commit)
    mirror.save()
    with closing(sqlite3.connect(home / "lab.db")) as connection:
        (created_at,) = connection.execute("SELECT created_at FROM votes WHERE annotator = 'Late'").fetchone()
    assert saved_rows(hub, tmp_path, VOTERS) == [("Ann",)] * 3
    assert mirror.state.saved_at < created_at


# ---- whose commit it is


def test_a_commit_that_was_accepted_without_an_answer_is_recognised(mirror, hub, home, tmp_path):
    mirror.save()
    vote_again(home, "Bea")
    hub.faults = [("commit", "drop-after")]
    with pytest.raises(HubUnavailableError, match="cannot be reached"):
        mirror.save()
    accepted = hub.head
    assert saved_rows(hub, tmp_path, VOTERS, accepted)[-1] == ("Bea",)
    vote_again(home, "Cem")
    assert mirror_of(home).save()  # after a restart of the page, too
    assert hub.commit()["parent"] == accepted
    assert saved_rows(hub, tmp_path, VOTERS)[-2:] == [("Bea",), ("Cem",)]


def test_a_lab_in_another_place_that_saves_to_the_same_repository_stops_this_one(mirror, hub, home, tmp_path):
    mirror.save()
    other = tmp_path / "other"
    with closing(sqlite3.connect(home / "lab.db")) as source, closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        source.backup(copy)
    other.mkdir()
    (tmp_path / "copy.db").rename(other / "lab.db")
    (other / "mirror.json").write_text((home / "mirror.json").read_text())
    vote_again(other, "Bea")
    mirror_of(other).save()
    head_of_other = hub.head
    vote_again(home, "Ann2")
    with pytest.raises(MirrorConflictError, match=r"The same lab, in another place, .*RLHF_LAB_MIRROR_TAKE_OVER=1"):
        mirror.save()
    with pytest.raises(MirrorConflictError):
        mirror_of(home).save()
    assert hub.head == head_of_other


@pytest.fixture
def interfere(hub, monkeypatch):
    """interfere(act): call act() once, after a save has checked the repository and before its commit."""
    real = hub.next_fault

    def patch(act):
        def next_fault(stage):
            if stage == "commit":
                monkeypatch.setattr(hub, "next_fault", real)
                act()
            return real(stage)

        monkeypatch.setattr(hub, "next_fault", next_fault)

    return patch


def test_a_commit_by_hand_during_a_save_is_not_overwritten_and_the_next_save_succeeds(mirror, hub, home, interfere):
    mirror.save()
    vote_again(home, "Bea")
    interfere(lambda: hub.add_commit({"lab.db": b"theirs"}))
    with pytest.raises(HubUnavailableError, match="somebody changed someone/lab during a save"):
        mirror.save()
    assert hub.content("lab.db") == b"theirs"
    assert mirror.save()
    assert hub.content("lab.db") != b"theirs"


def test_another_labs_commit_during_a_save_stops_this_one_with_what_to_do(mirror, hub, home, tmp_path, interfere):
    mirror.save()
    other = tmp_path / "other"
    with Database.open(other) as db:
        projects.create_project(db, "other", "embedded", "abc", "tales", 7, [("Once", "train"), ("Far", "eval")])
    vote_again(home, "Bea")
    interfere(lambda: mirror_of(other, take_over=True).save())
    with pytest.raises(MirrorConflictError, match=r"holds another lab .*takes over under Runs & data"):
        mirror.save()


def test_the_repository_of_another_lab_is_not_overwritten_unless_it_is_taken_over(mirror, hub, home, tmp_path):
    mirror.save()
    other = tmp_path / "other"
    with Database.open(other) as db:
        projects.create_project(db, "other", "embedded", "abc", "tales", 7, [("Once", "train"), ("Far", "eval")])
    with pytest.raises(MirrorConflictError, match="holds another lab"):
        mirror_of(other).save()
    assert mirror_of(other, take_over=True).save()
    assert sorted(hub.commit()["files"]) == ["lab.db", "manifest.json"]
    assert saved_rows(hub, tmp_path, "SELECT name FROM projects") == [("other",)]
    vote_again(home, "Bea")
    with pytest.raises(MirrorConflictError):
        mirror.save()


def test_files_that_somebody_changed_by_hand_are_saved_again(mirror, hub, home):
    mirror.save()
    before = hub.commit()["files"]
    hub.add_commit({"README.md": b"our lab", "speed.json": b"broken", "reward_models/m/report.json": None})
    assert mirror.save()
    after = hub.commit()["files"]
    assert after.pop("README.md")
    assert {path: digest for path, digest in after.items() if path != "manifest.json"} == {
        path: digest for path, digest in before.items() if path != "manifest.json"
    }


def test_the_history_is_squashed_after_some_commits(mirror, hub, home, tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf_lab.backup.hub_mirror.MAX_COMMITS", 3)
    lengths = []
    for n in range(7):
        vote_again(home, f"voter {n}")
        hub.faults = [("squash", "drop")] if n == 2 else [("squash", "drop-after")] if n == 6 else []
        mirror.save()
        lengths.append(len(hub.history()))
    assert lengths == [2, 3, 4, 1, 2, 3, 1]  # with the commit that the Hub makes; the third squash is tried again
    vote_again(home, "last")
    assert mirror.save()
    assert saved_rows(hub, tmp_path, VOTERS)[-1] == ("last",)


# ---- failures


@pytest.mark.parametrize("stage", ["info", "create", "preupload", "batch", "object", "commit"])
@pytest.mark.parametrize("fault", ["error", "drop", "limit"])
def test_after_a_failure_at_any_stage_the_next_save_succeeds(mirror, hub, home, tmp_path, stage, fault):
    hub.faults = [(stage, fault)] * 10  # the client itself tries some requests 6 times
    with pytest.raises(HubUnavailableError):
        mirror.save()
    hub.faults = []
    assert mirror.save()
    assert saved_rows(hub, tmp_path, VOTERS) == [("Ann",)] * 3


def test_the_rate_limit_says_how_long_to_wait(mirror, hub):
    mirror.save()
    hub.faults = [("info", "limit")]
    with pytest.raises(HubUnavailableError, match="limits how often") as error:
        mirror.save()
    assert error.value.retry_after_s == 1.0


@pytest.mark.parametrize(
    ("token", "message"), [(READ_TOKEN, "needs write access"), ("hf_unknown", "needs write access")]
)
def test_a_token_that_may_not_write_is_refused_with_what_to_do(home, hub, monkeypatch, token, message):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(MirrorError, match=message) as error:
        mirror_of(home).save()
    assert not isinstance(error.value, HubUnavailableError)
    assert token not in str(error.value)


def test_without_a_token_the_message_says_where_it_comes_from(home, hub, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(MirrorError, match=r"no token .* HF_TOKEN"):
        mirror_of(home).save()


def test_a_public_repository_is_refused(home, hub):
    hub.create(private=False)
    with pytest.raises(MirrorError, match="is public, and labels are personal data"):
        mirror_of(home).save()
    assert hub.commit()["files"] == {}


def test_a_repository_of_something_else_is_refused(home, hub):
    hub.create()
    hub.add_commit({"train.parquet": b"rows", ".gitattributes": b""})
    with pytest.raises(MirrorError, match="holds something else"):
        mirror_of(home).save()


@pytest.mark.parametrize("name", ["lab", "a/b/c", "/lab", ""])
def test_invalid_repository_names_are_refused(name):
    with pytest.raises(ConfigError, match="Write OWNER/NAME"):
        HubRepository(name)


def test_the_state_says_what_is_wrong_until_a_save_succeeds(mirror, home):
    mirror.note_problem("The Hub does not answer.")
    assert read_state(home).problem == "The Hub does not answer."
    mirror.save()
    assert read_state(home).problem == ""


# ---- restoring


def contents(home):
    """The SHA-256 of the files that belong to the lab beside the database."""
    return {
        path.relative_to(home).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in ("reward_models", "rewards", "runs")
        for path in (home / folder).rglob("*")
        if path.is_file()
    }


def lab_rows(home):
    tables = ("projects", "prompts", "completions", "pairs", "votes", "reward_models", "metrics")
    with closing(sqlite3.connect(home / "lab.db")) as connection:
        return {table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables}


def test_an_empty_home_gets_the_whole_lab_and_goes_on_saving(mirror, hub, home, tmp_path):
    with Database.open(home) as db:
        queue.submit(db, JobKind.TRAIN_POLICY, 1, {"run_id": 1})
        queue.claim(db, (JobKind.TRAIN_POLICY,), engine_process.record_heartbeat(db, "trains"))
    mirror.save()
    new = tmp_path / "new"
    assert mirror_of(new).restore()
    assert lab_rows(new) == lab_rows(home)
    saved = {
        path: digest
        for path, digest in hub.commit()["files"].items()
        if path.split("/")[0] in ("runs", "rewards", "reward_models")
    }
    assert contents(new) == saved
    assert checkpoint_index.is_intact(new / "runs/1/step-000003")
    with Database.open(new) as db:
        assert engine_process.engine_state(db).state is EngineState.ABSENT
        (job,) = queue.requeue_interrupted(db)
        assert job.payload == {"run_id": 1}
    vote_again(new, "Bea")
    assert mirror_of(new).save()
    assert saved_rows(hub, tmp_path, VOTERS)[-1] == ("Bea",)


def test_a_home_with_a_lab_is_left_alone(mirror, hub, home, tmp_path):
    mirror.save()
    vote_again(home, "Bea")
    before = lab_rows(home)
    assert not mirror_of(home).restore()
    assert lab_rows(home) == before


def test_an_empty_repository_leaves_an_empty_home(hub, tmp_path):
    assert not mirror_of(tmp_path / "new").restore()
    assert not (tmp_path / "new" / "lab.db").exists()
    assert hub.is_private


def test_after_a_restore_the_old_home_cannot_save_any_more(mirror, hub, home, tmp_path):
    mirror.save()
    mirror_of(tmp_path / "new").restore()
    vote_again(home, "Bea")
    with pytest.raises(MirrorConflictError, match="in another place"):
        mirror.save()


def test_a_save_of_the_old_home_during_a_restore_is_restored_too(mirror, hub, home, tmp_path, monkeypatch):
    mirror.save()
    new = mirror_of(tmp_path / "new")
    real = HubMirror._download

    def save_during_download(self, *args):
        files = real(self, *args)
        with closing(sqlite3.connect(home / "lab.db")) as connection:
            voters = connection.execute("SELECT count(*) FROM votes").fetchone()
        if voters == (3,):
            vote_again(home, "Bea")
            mirror.save()
        return files

    monkeypatch.setattr(HubMirror, "_download", save_during_download)
    assert new.restore()
    assert lab_rows(tmp_path / "new")["votes"] == lab_rows(home)["votes"]
    assert len(lab_rows(home)["votes"]) == 4


@pytest.mark.parametrize("stage", ["info", "download", "preupload", "commit"])
@pytest.mark.parametrize("fault", ["error", "drop", "drop-after"])
def test_a_restore_that_fails_leaves_no_lab_and_succeeds_later(mirror, hub, home, tmp_path, stage, fault):
    mirror.save()
    hub.faults = [(stage, fault)] * 40
    new = tmp_path / "new"
    with pytest.raises(HubUnavailableError):
        mirror_of(new).restore()
    assert not lab_exists(new)
    hub.faults = []
    assert mirror_of(new).restore()
    assert lab_rows(new) == lab_rows(home)


def test_what_has_arrived_whole_is_not_fetched_again(mirror, hub, home, tmp_path, monkeypatch):
    mirror.save()
    new = tmp_path / "new"
    fetched = []
    real = HubRepository.download

    def download(self, commit, path, folder):
        if path != "manifest.json":
            fetched.append(path)
        if path.startswith("rewards/") and fetched.count(path) == 1:
            raise HubUnavailableError("the Hub cannot be reached")
        return real(self, commit, path, folder)

    monkeypatch.setattr(HubRepository, "download", download)
    with pytest.raises(HubUnavailableError):
        mirror_of(new).restore()
    mirror_of(new).restore()
    assert sorted(set(fetched)) == sorted(path for path in hub.commit()["files"] if path != "manifest.json")
    assert [path for path in set(fetched) if fetched.count(path) > 1] == ["rewards/mine.py"]


def test_a_file_that_is_not_what_was_saved_is_refused(mirror, hub, home, tmp_path):
    mirror.save()
    hub.add_commit({"reward_models/m/report.json": b"broken"})
    with pytest.raises(MirrorError, match=r"reward_models/m/report\.json .*SHA-256 differs"):
        mirror_of(tmp_path / "new").restore()
    assert not lab_exists(tmp_path / "new")


@pytest.mark.parametrize("path", ["../mine.txt", "rewards/../../mine.txt", "engine.log"])
def test_a_manifest_names_no_files_outside_of_a_lab(mirror, hub, home, tmp_path, path):
    mirror.save()
    manifest = json.loads(hub.content("manifest.json"))
    manifest["files"][path] = {"size": 1, "sha256": "0" * 64}
    hub.add_commit({"manifest.json": json.dumps(manifest).encode()})
    new = tmp_path / "new"
    new.mkdir()
    for file in (new / "mine.txt", tmp_path / "mine.txt", new / "engine.log"):
        file.write_text("kept")
    with pytest.raises(DataError, match="not a file of a lab"):
        mirror_of(new).restore()
    assert [file.read_text() for file in (new / "mine.txt", tmp_path / "mine.txt", new / "engine.log")] == ["kept"] * 3
    assert not lab_exists(new)


def test_a_manifest_without_the_database_is_not_restored_as_an_empty_lab(mirror, hub, home, tmp_path):
    mirror.save()
    manifest = json.loads(hub.content("manifest.json"))
    del manifest["files"]["lab.db"]
    hub.add_commit({"manifest.json": json.dumps(manifest).encode()})
    history = hub.history()
    with pytest.raises(DataError, match=r"no database \(lab\.db\)"):
        mirror_of(tmp_path / "new").restore()
    assert (lab_exists(tmp_path / "new"), hub.history()) == (False, history)


@pytest.mark.parametrize("token", [READ_TOKEN, "hf_unknown"])
def test_no_empty_lab_is_begun_with_a_token_that_cannot_save(mirror, hub, home, tmp_path, monkeypatch, token):
    mirror.save()
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(MirrorError, match="needs write access"):
        mirror_of(tmp_path / "new").restore()
    assert not lab_exists(tmp_path / "new")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1, "lab": "a"}', "[" * 100_000], ids=lambda text: text[:9]
)
def test_a_manifest_that_cannot_be_read_is_refused(mirror, hub, tmp_path, text):
    mirror.save()
    hub.add_commit({"manifest.json": text.encode()})
    with pytest.raises(MirrorError, match=r"manifest\.json in the repository cannot be read"):
        mirror_of(tmp_path / "new").restore()


def test_a_manifest_of_a_later_format_asks_for_an_update(mirror, hub, tmp_path):
    mirror.save()
    hub.add_commit({"manifest.json": b'{"format": 2}'})
    with pytest.raises(MirrorError, match="Update this one"):
        mirror_of(tmp_path / "new").restore()
