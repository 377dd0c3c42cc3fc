"""What app.py does with a repository that cannot be read: it does not start an empty lab instead."""

import pytest
from support.mirror_hub import MirrorHub

from rlhf_lab.cli import serve
from rlhf_lab.jobs import mirror_loop


@pytest.mark.parametrize("is_down", [True, False])
def test_no_empty_lab_is_begun_where_nothing_can_be_restored(tmp_path, monkeypatch, capsys, is_down):
    monkeypatch.setattr(mirror_loop, "RESTORE_PATIENCE_S", 0.0)
    hub = MirrorHub(tmp_path / "hub")
    with hub.use(monkeypatch, tmp_path / "cache").running():
        hub.create()
        hub.is_down = is_down
        hub.add_commit({"manifest.json": b"broken"})
        monkeypatch.setenv("RLHF_LAB_MIRROR", "someone/lab")
        assert serve.main(["--home", str(tmp_path / "home")]) == 1
    message = capsys.readouterr().err
    assert ("status 503" if is_down else "cannot be read") in message
    assert "start it without RLHF_LAB_MIRROR" in message
    assert not (tmp_path / "home" / "lab.db").exists()
