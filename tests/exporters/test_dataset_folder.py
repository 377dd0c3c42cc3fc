"""A folder that load_dataset opens, with a card and its provenance; and its upload to the Hub, with a stub of the Hub."""

import hashlib
import json
import subprocess
import sys

import pytest
from support.exported_rows import label_rows
from support.fake_hub import UploadHub

from rlhf_lab.cli.main import main
from rlhf_lab.errors import ConfigError, DataError, LabelError
from rlhf_lab.exporters.dataset_folder import export_dataset
from rlhf_lab.exporters.hub_upload import push_folder
from rlhf_lab.exporters.label_export import FORMATS, LabelExportOptions

LOAD = """
import json, sys
from datasets import load_dataset
for number, folder in enumerate(sys.argv[2:]):
    rows = load_dataset(folder, split="train", cache_dir=f"{sys.argv[1]}/{number}")
    print(json.dumps([rows.column_names, [dict(row) for row in rows]]))
"""


def load(tmp_path, *folders):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOAD, str(tmp_path / "cache"), *map(str, folders)],
        capture_output=True, text=True, check=True, env={"HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)},
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def test_load_dataset_opens_every_format_and_layout_with_trls_columns(db, project, voted, out, tmp_path):
    options = [LabelExportOptions(source=None, format=format_) for format_ in FORMATS]
    options += [
        LabelExportOptions(layout=layout, messages=chat, format="parquet")
        for layout in ("explicit", "implicit")
        for chat in (False, True)
    ]
    folders = [export_dataset(db, project.id, out / str(i), one) for i, one in enumerate(options)]
    loaded = load(tmp_path, *folders)
    plain = label_rows(db, project, LabelExportOptions(source=None))
    for (columns, rows), one in zip(loaded[: len(FORMATS)], options, strict=False):
        assert columns == list(plain[0])
        texts = [(row["prompt"], row["chosen"], row["rejected"], row["tie"]) for row in rows]
        assert texts == [(row["prompt"], row["chosen"], row["rejected"], row["tie"]) for row in plain], one.format
    names = [columns for columns, _ in loaded[len(FORMATS) :]]
    assert names == [["prompt", "chosen", "rejected"]] * 2 + [["chosen", "rejected"]] * 2
    explicit, chats, implicit, implicit_chats = (rows for _, rows in loaded[len(FORMATS) :])
    assert explicit[0] == {"prompt": "Once", "chosen": " a1", "rejected": " b1"}
    assert chats[0]["chosen"] == [{"role": "assistant", "content": " a1"}]
    assert implicit[0] == {"chosen": "Once a1", "rejected": "Once b1"}
    assert [m["role"] for m in implicit_chats[0]["rejected"]] == ["user", "assistant"]


def test_card_and_provenance(db, project, voted, out, names):
    folder = export_dataset(db, project.id, out, LabelExportOptions(source=None))
    assert names(out) == [f"labels-project-1/{name}" for name in ("README.md", "data/train.jsonl", "provenance.json")]
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["sha256"] == hashlib.sha256((folder / "data" / "train.jsonl").read_bytes()).hexdigest()
    assert (provenance["rows"], provenance["votes"]["by_source"], provenance["votes"]["by_choice"]) == (
        5, {"human": 4, "simulated": 1}, {"second": 2, "first": 1, "tie": 1, "both_bad": 1},
    )  # fmt: skip
    assert provenance["votes"]["by_annotator"] == {"ann": 3, "bob": 1, "judge:polite": 1}
    assert provenance["project"]["model"] == "tiny"  # of /data/models/tiny: no local path
    card = (folder / "README.md").read_text()
    assert "path: data/train.jsonl" in card
    assert "**1 of the votes are simulated**" in card
    assert "/data/models" not in card + json.dumps(provenance)
    assert all(f"| `{column}` |" in card for column in provenance["columns"])
    people = export_dataset(db, project.id, out / "people", LabelExportOptions())
    assert "simulated**" not in (people / "README.md").read_text()


def test_empty_project_and_invalid_options(db, project, voted, out):
    with pytest.raises(LabelError, match="no human labels by carol"):
        export_dataset(db, project.id, out, LabelExportOptions(annotators=("carol",)))
    assert not out.exists()
    for bad in ({"format": "xls"}, {"layout": "dpo"}, {"agreement": 2.0}, {"layout": "explicit", "token_ids": True}):
        with pytest.raises(ConfigError):
            LabelExportOptions(**bad)


def test_upload_to_the_hub(db, project, voted, out, monkeypatch, tmp_path):
    hub = UploadHub(monkeypatch)
    folder = export_dataset(db, project.id, out)
    address = push_folder(folder, "me/mine", token="hf_secret")
    assert address == "https://huggingface.co/datasets/me/mine"
    assert hub.calls == [
        ("create", "me/mine", {"repo_type": "dataset", "private": True, "exist_ok": True}),
        ("upload", "me/mine", ["README.md", "provenance.json", "train.parquet"]),
    ]
    assert hub.token == "hf_secret"
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"hf_secret" not in written


def test_upload_errors_do_not_contain_the_token(tmp_path, monkeypatch):
    UploadHub(monkeypatch, OSError("401 for hf_secret: who are you?"))
    with pytest.raises(DataError, match="a token that may write there") as caught:
        push_folder(tmp_path, "me/mine", token="hf_secret")
    assert "hf_secret" not in str(caught.value)
    assert caught.value.__suppress_context__
    for name in ("mine", "a/b/c", "/x"):
        with pytest.raises(DataError, match="OWNER/NAME"):
            push_folder(tmp_path, name)


def test_the_command(db, project, voted, out, home, monkeypatch, capsys):
    hub = UploadHub(monkeypatch)
    common = ["--home", str(home), "--out", str(out), "--json"]
    assert main(["export", "dataset", *common, "--source", "all", "--layout", "explicit"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [name.rsplit("/", 1)[1] for name in files] == ["README.md", "train.parquet", "provenance.json"]
    assert main(["export", "dataset", *common, "--force", "--push", "me/mine", "--public"]) == 0
    assert json.loads(capsys.readouterr().out)["address"].endswith("/me/mine")
    assert hub.calls[0][2]["private"] is False
