"""A folder that load_dataset opens, with a card and its provenance; and its upload to the Hub, with a stub of the Hub."""

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import httpx2 as httpx
import huggingface_hub
import pytest
from huggingface_hub.utils._http import default_client_factory
from support.exported_rows import label_rows
from support.fake_hub import UploadHub

from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.common.records import NewCompletion, Vote
from rlhf_lab.errors import ConfigError, DataError, LabelError
from rlhf_lab.exporters.dataset_folder import export_dataset
from rlhf_lab.exporters.hub_upload import push_folder
from rlhf_lab.exporters.label_export import FORMATS, LabelExportOptions
from rlhf_lab.store import projects
from rlhf_lab.store.votes import cast_vote

LOAD = """
import json, os, re, sys
for folder in sys.argv[1:]:
    os.chdir(folder)
    code = re.search("```python\\n(.*?)```", open("README.md", encoding="utf-8").read(), re.DOTALL)[1]
    names = {}
    exec(code, names)
    print(json.dumps([names["data"].column_names, [dict(row) for row in names["data"]]]))
"""


def load(tmp_path, *folders):
    """(columns, rows) of each data set, read by the code of its card as it is, in its folder. All share one cache."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOAD, *map(str, folders)],
        capture_output=True, text=True, check=False, env={"HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


LOAD_FILE = """
```python
from datasets import load_dataset

data = load_dataset("json", data_files="labels.jsonl", split="train")
```
"""
#: Texts that readers of CSV take for missing values, and others that formats treat in their own way.
ODD_TEXTS = ["null", "None", "NaN", "", "N/A", "#N/A", "true", "1", " ", 'a "b", c\nd', "\u2028", "=1+1"]


def add_odd_votes(db, project):
    (prompt, *_) = projects.prompts(db, project.id, "train")
    for number, text in enumerate(ODD_TEXTS):
        sides = projects.add_completions(
            db, [NewCompletion(prompt.id, side, (), "base", 1) for side in (text, f"x{number}")]
        )
        (pair,) = projects.add_pairs(db, project.id, [(sides[0].id, sides[1].id, "random")])
        strength = Strength.MUCH if number == len(ODD_TEXTS) - 1 else None
        response_ms = 7 if number % 2 else None
        cast_vote(
            db,
            Vote(
                f"odd{number}",
                pair.id,
                "ann",
                Source.HUMAN,
                Choice.FIRST,
                True,
                response_ms,
                note=text,
                strength=strength,
            ),
        )


@pytest.mark.parametrize("layout", ["votes", "explicit"])
def test_texts_are_read_as_they_are_in_every_format(db, project, voted, out, tmp_path, layout):
    """In CSV a text is never missing: an empty one is empty. Numbers may be missing in every format."""
    add_odd_votes(db, project)
    options = [LabelExportOptions(layout=layout, format=format_) for format_ in FORMATS]
    plain = json.loads(json.dumps(label_rows(db, project, options[0])))
    loaded = load(tmp_path, *(export_dataset(db, project.id, out / one.format, one) for one in options))
    for (_, rows), one in zip(loaded, options, strict=True):
        names = [
            "prompt",
            "chosen",
            "rejected",
            *(["response_ms", "first_on_left", "created_at", "uuid"] if layout == "votes" else []),
        ]
        assert [[row[name] for name in names] for row in rows] == [[row[name] for name in names] for row in plain], (
            one.format
        )
        if layout == "votes":
            strengths = [row["strength"] or ("" if one.format == "csv" else None) for row in plain]
            assert [row["strength"] for row in rows] == strengths


def test_a_column_that_is_empty_at_the_beginning_of_a_long_file_is_read(db, project, voted, out, tmp_path):
    """`datasets` reads JSON Lines in parts of 10 MB and takes the types from the first, if the card states none: the row with the
    first value of a column comes first."""
    (prompt, *_) = projects.prompts(db, project.id, "train")
    for number in range(45):
        texts = (f"{number}{'x' * 130_000}", f"{number}{'y' * 130_000}")
        sides = projects.add_completions(db, [NewCompletion(prompt.id, text, (), "base", 1) for text in texts])
        (pair,) = projects.add_pairs(db, project.id, [(sides[0].id, sides[1].id, "random")])
        cast_vote(
            db,
            Vote(
                f"u{number}long",
                pair.id,
                "zoe",
                Source.HUMAN,
                Choice.FIRST,
                True,
                strength=Strength.MUCH if number == 44 else None,
            ),
        )
    folder = export_dataset(db, project.id, out, LabelExportOptions(annotators=("zoe",), format="jsonl"))
    alone = out / "alone"
    alone.mkdir()
    (folder / "data" / "train.jsonl").rename(alone / "labels.jsonl")
    (alone / "README.md").write_text(LOAD_FILE)
    ((_, rows),) = load(tmp_path, alone)
    assert [row["strength"] for row in rows] == ["much"] + [None] * 44
    assert [row["chosen"][:2] for row in rows[:3]] == ["44", "0x", "1x"]


def test_a_new_export_to_the_same_folder_is_read_anew(db, project, voted, out, tmp_path):
    """`datasets` keeps what it has read under names, and the folder of each lab's first project has the same name."""
    folder = export_dataset(db, project.id, out)
    ((_, before),) = load(tmp_path, folder)
    add_odd_votes(db, project)
    export_dataset(db, project.id, out, force=True)
    ((_, after),) = load(tmp_path, folder)
    assert len(after) == len(before) + len(ODD_TEXTS)


def test_ties_are_left_out_of_the_layouts_for_training_and_counted(db, project, voted, out):
    """Of the fixture's five votes one is a tie and one both bad; the simulated one is not among them."""
    for layout, source, left_out in (
        ("training", None, 2),
        ("explicit", None, 2),
        ("implicit", None, 2),
        ("votes", None, 0),
        ("explicit", Source.SIMULATED, 0),
    ):
        folder = export_dataset(
            db, project.id, out / f"{layout}{source}", LabelExportOptions(layout=layout, source=source)
        )
        provenance = json.loads((folder / "provenance.json").read_text())
        assert (provenance["rows"], provenance["ties_left_out"]) == ((1 if source else 5) - left_out, left_out)
        assert (f"without ties ({left_out} left out)" in (folder / "README.md").read_text()) is (layout != "votes")


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


@pytest.mark.parametrize("is_chat_model", [True, False])
def test_the_command_writes_turns_for_a_chat_model_and_leaves_ties_out(
    db, project, voted, out, home, monkeypatch, capsys, is_chat_model
):
    """--layout votes and --no-messages write what was the default before."""
    monkeypatch.setattr("rlhf_lab.cli.export.has_chat_template", lambda model: is_chat_model)

    def exported(*options):
        assert (
            main(
                [
                    "export",
                    "labels",
                    "--home",
                    str(home),
                    "--out",
                    str(out / "-".join(options)),
                    "--source",
                    "all",
                    *options,
                ]
            )
            == 0
        )
        result = capsys.readouterr()
        return [json.loads(line) for line in Path(result.out.strip()).read_text().splitlines()], result.err

    rows, message = exported()
    texts = {"prompt": "Once", "chosen": " a1", "rejected": " b1"}
    chats = {
        name: [{"role": "user" if name == "prompt" else "assistant", "content": text}] for name, text in texts.items()
    }
    assert {name: rows[0][name] for name in texts} == (chats if is_chat_model else texts)
    assert [(row["tie"], row["annotator"]) for row in rows] == [(False, "ann"), (False, "ann"), (False, "judge:polite")]
    assert message.startswith("2 votes left out, because a tie has no better text")
    assert exported("--no-messages")[0][0]["prompt"] == "Once"
    assert exported("--messages", "--layout", "explicit")[0][0] == chats
    for archive in (("--layout", "votes"), ("--ties", "keep")):
        rows, message = exported(*archive)
        assert (len(rows), rows[0]["prompt"], rows[0]["annotator"], message) == (5, "Once", "ann", "")


@pytest.mark.parametrize("headers", [{"Retry-After": "3600"}, {"RateLimit": '"api";r=0;t=3600'}])
def test_a_push_does_not_wait_for_an_hour(tmp_path, monkeypatch, headers):
    """The client would wait as long as the Hub asks for, five times."""
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    transport = httpx.MockTransport(lambda _: httpx.Response(429, headers=headers))
    huggingface_hub.set_client_factory(lambda: httpx.Client(transport=transport))
    try:
        with pytest.raises(DataError, match=r"asks to wait for 60 minutes. Send them again after \d\d:\d\d"):
            push_folder(tmp_path, "me/mine", token="hf_secret")
    finally:
        huggingface_hub.set_client_factory(default_client_factory)
    assert waits == []
