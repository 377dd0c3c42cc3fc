"""The operator sets up, takes over and ends the mirror of a lab while its page runs."""

import json
import shutil
import stat

import pytest
from filelock import FileLock
from support.mirror_hub import READ_TOKEN, TOKEN, MirrorHub
from support.slow_hub import PARTS, slow_hub

from rlhf_lab.backup.archive import write_backup
from rlhf_lab.backup.hub_mirror import HubMirror
from rlhf_lab.backup.hub_repository import HubRepository
from rlhf_lab.backup.mirror_settings import SETTINGS_FILE, MirrorSettings, read_settings
from rlhf_lab.backup.snapshot import take_snapshot
from rlhf_lab.errors import ConfigError, HubUnavailableError, MirrorConflictError, MirrorError, StoreError
from rlhf_lab.jobs.mirror_control import MirrorControl
from rlhf_lab.jobs.mirror_loop import mirror_of
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.database import Database

#: The client passes the content of uploads to httpx2 by a parameter of an older name.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    server = MirrorHub(tmp_path / "hub")
    with server.use(monkeypatch, tmp_path / "cache").running():
        monkeypatch.delenv("HF_TOKEN")
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-login"))
        yield server


@pytest.fixture
def home(tmp_path, project_home):
    return shutil.copytree(project_home, tmp_path / "home")


@pytest.fixture
def control(home, hub):
    return MirrorControl(home, {})


def test_a_lab_is_saved_where_the_form_says_and_after_a_restart_too(control, hub, home):
    assert (control.repository, control.has_token, control.mirror) == ("", False, None)
    control.set_up(" someone/lab ", f"{TOKEN}\n")
    assert (control.repository, control.has_token) == ("someone/lab", True)
    assert hub.is_private
    control.loop.run_once()
    assert "lab.db" in hub.commit()["files"]
    assert mirror_of(home, {}).save() is False  # a page that starts now continues with it
    control.loop.end()
    control.turn_off()
    assert (control.repository, control.has_token, mirror_of(home, {})) == ("", False, None)


@pytest.mark.parametrize("part", PARTS)
def test_a_hub_that_answers_without_end_holds_no_set_up(home, monkeypatch, part):
    """Nothing is changed, and the next decision need not wait."""
    monkeypatch.setattr("rlhf_lab.common.hub_errors.DEADLINE_S", 0.5)
    control = MirrorControl(home, {})
    with slow_hub(part) as url:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        for _ in range(2):
            with pytest.raises(HubUnavailableError, match="not answered completely within"):
                control.set_up("someone/lab", TOKEN)
    assert (control.repository, control.mirror, read_settings(home)) == ("", None, None)
    control.turn_off()


def test_the_token_is_the_owners_file_and_in_no_copy_of_the_lab(control, hub, home, tmp_path, caplog):
    control.set_up("someone/lab", TOKEN)
    file = home / SETTINGS_FILE
    assert json.loads(file.read_text()) == {"repository": "someone/lab", "token": TOKEN}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    control.loop.run_once()
    hub.faults = [("info", "401")]
    control.loop.mirror.home.joinpath("speed.json").write_text("[]")
    control.loop._next_save_at = control.loop._full_check_at = 0.0
    control.loop.run_once()
    assert "401" in control.loop.mirror.state.problem
    snapshot = take_snapshot(home, tmp_path / "snapshot", secrets=True)
    write_backup(home, tmp_path / "lab.zip")
    places = [one.source for one in snapshot.files] + [tmp_path / "lab.zip", home / "mirror.json"]
    places += [path for path in (tmp_path / "hub").rglob("*") if path.is_file()]
    assert len(places) > 5
    assert [path for path in places if TOKEN.encode() in path.read_bytes()] == []
    assert SETTINGS_FILE not in [one.path for one in snapshot.files]
    assert TOKEN not in caplog.text + repr(read_settings(home))


@pytest.mark.parametrize(
    ("repository", "token", "message"),
    [
        ("", TOKEN, "OWNER/NAME"),
        ("lab", TOKEN, "OWNER/NAME"),
        ("someone/lab", "", "There is no token .* Enter it under Runs & data"),
        ("someone/lab", "hf_wrong", r"status 401\).*needs write access"),
        ("someone/lab", READ_TOKEN, r"status 403\).*needs write access"),
        ("someone/lab", "hf_a hf_b", "Copy it again"),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_what_cannot_be_used_is_said_at_once_and_changes_nothing(
    control, hub, home, repository, token, message, exists
):
    if exists:
        hub.create()
    with pytest.raises((ConfigError, MirrorError), match=message) as error:
        control.set_up(repository, token)
    assert not token or token not in str(error.value)
    assert (control.repository, read_settings(home)) == ("", None)


def test_a_public_repository_is_refused(control, hub):
    hub.create(private=False)
    with pytest.raises(MirrorError, match="public"):
        control.set_up("someone/lab", TOKEN)


def test_another_repository_with_the_token_of_before(control, home, hub):
    control.set_up("someone/lab", TOKEN)
    before = control.loop
    control.set_up("someone/other", "")
    assert read_settings(home) == MirrorSettings("someone/other", TOKEN)
    assert before._stop_event.is_set()


def test_variables_win(home, hub, monkeypatch):
    MirrorControl(home, {}).set_up("someone/lab", TOKEN)
    variables = {"RLHF_LAB_MIRROR": "a/b"}
    control = MirrorControl(home, variables)
    assert (control.repository, control.is_set_by_variable) == ("a/b", True)
    assert control.mirror.repository._token is None  # and no token of the form
    for change in (lambda: control.set_up("c/d", TOKEN), control.turn_off):
        with pytest.raises(ConfigError, match="RLHF_LAB_MIRROR names the repository"):
            change()
    assert read_settings(home) == MirrorSettings("someone/lab", TOKEN)
    control = MirrorControl(home, {"HF_TOKEN": "hf_other"})
    assert (control.repository, control.has_token_variable) == ("someone/lab", True)
    assert control.mirror.repository._token is None  # the client reads the variable


def test_taking_over_replaces_what_another_lab_has_saved(control, hub, tmp_path):
    other = tmp_path / "other"
    with Database.open(other) as db:
        new_project(db)
    other_mirror = HubMirror(other, HubRepository("someone/lab", TOKEN))
    other_mirror.save()
    control.set_up("someone/lab", TOKEN)
    with pytest.raises(MirrorError, match="nothing to take over"):
        control.take_over()
    control.loop.run_once()
    assert control.has_conflict
    assert "Runs & data → Backup" in control.loop.mirror.state.problem
    saved_head = hub.head
    control.loop.run_once()
    assert hub.head == saved_head
    control.take_over()
    control.loop.run_once()
    assert not control.has_conflict
    assert hub.commit()["parent"] == saved_head
    assert json.loads(hub.content("manifest.json"))["lab"] == control.loop.mirror.state.lab != other_mirror.state.lab
    assert control.loop.mirror.state.problem == ""
    with pytest.raises(MirrorConflictError):
        other_mirror.save()


def test_a_page_leaves_the_mirror_to_the_page_that_saves(control, home, hub):
    with FileLock(home / "mirror.lock"), pytest.raises(MirrorError, match="Another page"):
        control.set_up("someone/lab", TOKEN)
    control.set_up("someone/lab", TOKEN)


def test_a_loop_that_ends_saves_nothing_more(control, hub):
    control.start()
    control.set_up("someone/lab", TOKEN)
    loop = control.loop
    control.turn_off()
    loop._thread.join(timeout=30)
    assert not loop._thread.is_alive()
    assert "lab.db" not in hub.commit()["files"]


def test_a_damaged_file_is_an_error_without_its_text(home, hub):
    (home / SETTINGS_FILE).write_text('{"token": "hf_secret"')
    with pytest.raises(StoreError, match="Delete it") as error:
        MirrorControl(home, {})
    assert "hf_secret" not in str(error.value)
    assert error.value.__cause__ is None
