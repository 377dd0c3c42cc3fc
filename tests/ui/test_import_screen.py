"""Section "Import" without a browser: only uploaded files are read, in a separate process.

`test_processes_read_and_import` starts such processes; the other tests call what they run.
"""

import dataclasses
import json
import re
import subprocess

import pytest

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.errors import DataError
from rlhf_lab.importers.__main__ import handle_request
from rlhf_lab.importers.column_mapping import MEANINGS
from rlhf_lab.importers.summary import format_undo
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.import_batches import ImportUndo
from rlhf_lab.store.run_metrics import metrics_since
from rlhf_lab.store.runs import runs
from rlhf_lab.store.votes import vote_counts
from rlhf_lab.ui.runs.import_data import api as import_data
from rlhf_lab.ui.shared import import_process


@pytest.fixture
def uploads(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    (tmp_path / "uploads").mkdir()
    return tmp_path / "uploads"


@pytest.fixture
def screen_and_processes(ctx, calls, uploads):
    return calls(import_data, ctx)


@pytest.fixture
def screen(screen_and_processes, monkeypatch):
    def run(request):
        return json.loads(json.dumps(handle_request(json.loads(json.dumps(request)))))

    monkeypatch.setattr(import_data, "run_in_subprocess", run)
    return screen_and_processes


@pytest.fixture
def upload(uploads):
    """upload(rows): the fields of a request for an uploaded file of people's votes."""

    def write(rows):
        path = uploads / "votes.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {"path": str(path), "name": "my votes.jsonl", "source": "human"}

    return write


ROWS = [{"question": "Why?", "good": "a", "bad": "b"}, {"question": "Who?", "good": "c", "bad": "d"}]


MAPPED = {"column_mapping": {"prompt": "question", "chosen": "good", "rejected": "bad"}}


def test_processes_read_and_import(screen_and_processes, upload):
    question = screen_and_processes.preview(upload(ROWS))["question"]
    assert question["columns"] == ["question", "good", "bad"]
    done = screen_and_processes.save(upload(ROWS) | MAPPED)
    assert done["message"].startswith("Imported: 2 votes from my votes.jsonl, on ")


def test_import_is_refused_if_another_project_was_opened(screen, ctx, upload):
    request = upload(ROWS) | MAPPED
    project = screen.preview(request)["project"]
    assert project == ctx.project.id
    other = new_project(ctx.db)
    error = screen.save(request | {"project": project})["error"]
    assert error.startswith("Another project has been opened. Nothing was imported.")
    assert not sum(vote_counts(ctx.db, other.id)[Source.HUMAN].values())
    assert screen.preview(request)["project"] == other.id
    assert "Imported: 2 votes" in screen.save(request | {"project": other.id})["message"]


def test_preview_mapping_and_import(screen, ctx, upload):
    file = upload(ROWS)
    reply = screen.preview(file)
    assert (reply["preview"], reply["question"]["columns"]) == (None, ["question", "good", "bad"])
    text = reply["question"]["text"]
    assert text.endswith('choose a column for "choice". Fill in the fields below, then press Read the data again.')
    assert "--map" not in text
    mapped = {"column_mapping": {"chosen": "good", "rejected": "bad", "no such": "question", "first": ""}}
    reply = screen.preview(file | mapped)
    preview = reply["preview"]
    assert (preview["name"], preview["votes"], preview["mapping"]) == (
        "my votes.jsonl", 2, {"prompt": "question", "chosen": "good", "rejected": "bad"},
    )  # fmt: skip
    assert (preview["warnings"], reply["question"], reply["message"]) == ("", None, "")
    assert sum(vote_counts(ctx.db, ctx.project.id)[Source.HUMAN].values()) == 0
    done = screen.save(file | mapped | {"default_annotator": " ann "})
    assert done["message"].startswith("Imported: 2 votes from my votes.jsonl, on ")
    counts = vote_counts(ctx.db, ctx.project.id)[Source.HUMAN]
    assert counts[Choice.FIRST] + counts[Choice.SECOND] == 2
    again = file | mapped | {"default_annotator": "ann", "annotator": "somebody who looks at the page"}
    removed = {"column_mapping": mapped["column_mapping"] | {"rejected": ""}}  # "–" removes a meaning
    assert screen.preview(again | removed)["question"]["columns"]
    held = "2 votes already in this project, left out"
    assert held in screen.preview(again)["preview"]["warnings"]
    for other in ({"default_annotator": "bob"}, {"source": "simulated"}):  # whose votes they are decides
        assert held not in screen.preview(again | other)["preview"]["warnings"]


def test_the_page_asks_which_column_is_the_prompt(screen, upload):
    """The empty name says that no column is: the prompt is text at the beginning of both responses."""
    row = {"user": "How long does an egg boil?", "chosen": "The egg boils.", "rejected": "The moon is far."}
    request = upload([row])
    question = screen.preview(request)["question"]
    assert question["columns"] == ["user", "chosen", "rejected"]
    assert question["text"].startswith(
        'No column is called prompt. The prompt may be in "user", or be the shared beginning'
    )
    assert "--map" not in question["text"]
    for column, prompt in (("user", "How long does an egg boil?"), ("", "The")):
        preview = screen.preview(request | {"column_mapping": {"prompt": column}})["preview"]
        assert preview["first_rows"][0]["prompt"] == prompt


def test_imports_are_listed_and_undone(screen, ctx, upload):
    screen.save(upload(ROWS) | MAPPED)
    listed = screen.imports()
    (record,) = listed["imports"]
    assert (record["name"], record["who"], record["votes_left"], record["pairs_left"]) == (
        "my votes.jsonl",
        "operator",
        2,
        2,
    )
    payload = {"project": listed["project"], "import_id": record["id"]}
    assert screen.summarize_undo(payload) == "2 votes and 2 pairs will be removed."
    for request in (screen.summarize_undo, screen.undo):
        reply = request(payload | {"project": listed["project"] + 1})
        assert "Another project has been opened" in reply["error"]
        for wrong in (record["id"] + 1, 2**70, None):
            assert request(payload | {"import_id": wrong})["error"]
    assert screen.imports() == listed
    assert screen.undo(payload) == "Undone: 2 votes and 2 pairs removed."
    assert sum(vote_counts(ctx.db, ctx.project.id)[Source.HUMAN].values()) == 0
    assert "already" in screen.undo(payload)["error"]
    assert screen.imports()["imports"][0]["votes_left"] == 0


def test_only_the_operator_reads_files_and_undoes_imports(ctx, screen, upload, calls):
    screen.save(upload(ROWS) | MAPPED)
    listed = screen.imports()
    visitor = calls(import_data, dataclasses.replace(ctx, operator_secret="secret"))
    payload = {"project": ctx.project.id, "import_id": listed["imports"][0]["id"]}
    for request in (visitor.preview, visitor.save, visitor.summarize_undo, visitor.undo):
        assert "Only the operator" in request(upload(ROWS) | MAPPED | payload)["error"]
    assert visitor.imports() == listed


def test_format_undo():
    text = format_undo(ImportUndo(1_234, 1_200, 34, 7, 2))
    assert text == (
        "1,234 votes and 1,200 pairs will be removed. 34 pairs will be kept, because other people have voted there. 7 prompts "
        "will no longer be used for sampling. 2 reward models have been trained on these votes and will not change: train "
        "another one afterwards."
    )
    assert format_undo(ImportUndo(1, 0, 1, 0, 1), completed=True) == (
        "1 vote and 0 pairs removed. 1 pair kept, because other people have voted there. 1 reward model has been trained on "
        "these votes and will not change: train another one afterwards."
    )


def test_no_other_file_of_this_machine_is_read(screen, uploads, tmp_path):
    (tmp_path / "secret.jsonl").write_text(json.dumps(ROWS[0]))
    for path in (
        tmp_path / "secret.jsonl",
        uploads / ".." / "secret.jsonl",
        uploads / "none",
        uploads,
    ):
        assert "is missing" in screen.preview({"path": str(path), "source": "human"})["error"]
    for name in ("", "secret.jsonl", "../secret", "a b/c", "rlhf_lab/ui"):
        assert "OWNER/NAME" in screen.preview({"dataset": name, "source": "human"})["error"]


def test_a_hub_data_set_is_passed_to_the_process(ctx, screen, monkeypatch):
    requests = []

    def run(request):
        requests.append(request)
        return {"error": "The Hub has no such data set."}

    monkeypatch.setattr(import_data, "run_in_subprocess", run)
    payload = {"dataset": " someone/pairs ", "split": "test", "source": "human"}
    for further in ({}, {"config": " en "}):
        assert screen.preview(payload | further) == {"error": "The Hub has no such data set."}
    common = {"home": str(ctx.home), "project": ctx.project.id, "source": "human", "annotator": ""}
    common |= {"map": {}, "choices": "", "answers": [], "what": "someone/pairs", "split": "test"}
    assert requests == [common, common | {"config": "en"}]
    json.dumps(requests)


def test_metrics_of_a_run_are_added_to_the_open_project(screen_and_processes, ctx, uploads):
    """By a process that reads the file; steps 1 and 2 of it are the first one here."""
    file = uploads / "log.csv"
    file.write_text("step,objective/kl,note\n1,1.0,x\n2,3.0,y\n3,5.0,z\n")
    request = {"path": str(file), "name": "my\x1blog.csv", "updates_per_step": "2"}
    message = screen_and_processes.import_run(request)
    (run,) = runs(ctx.db, ctx.project.id, made_elsewhere=True)
    assert message == f"Run {run.id}, made elsewhere: 2 steps, 1 metric\nleft out, because they have no numbers: note"
    assert (run.name, run.outside_file, run.step) == ("my?log.csv", "log.csv", 2)
    assert metrics_since(ctx.db, run.id, -1) == [(1, {"objective/kl": 2.0}), (2, {"objective/kl": 5.0})]


def test_a_file_that_is_no_run_adds_none(screen, ctx, uploads, tmp_path, calls):
    """Every refusal says what to do, in words of the page."""
    good, text, bad_step = uploads / "log.csv", uploads / "log.txt", uploads / "bad.jsonl"
    good.write_text("step,a\n1,1\n2,2\n")
    text.write_text("hello\n")
    bad_step.write_text('{"step": -1, "a": 1}\n{"step": 2, "a": 1}\n')
    (tmp_path / "secret.csv").write_text(good.read_text())
    updates = "updates_per_step"
    for request, message, field in (
        ({"path": str(text)}, "no numbers beside the steps|no step|is empty", None),
        ({"path": str(bad_step)}, "whole number from 0 to", None),
        ({"path": str(good), "updates_per_step": "0"}, r'^Updates in a step = "0": give a whole number', updates),
        ({"path": str(good), "updates_per_step": "x"}, "give a whole number from 1 to 10,000", updates),
        ({"path": str(good), "run_name": "a\x00b"}, "only visible characters", None),
        ({"path": str(good), "run_name": "n" * 200}, "a name has 1 to", None),
        ({"path": str(tmp_path / "secret.csv")}, "Choose it again", None),
        ({}, "no usable path", None),
    ):
        reply = screen.import_run(request)
        assert re.search(message, reply["error"]), (request, reply)
        assert "--" not in reply["error"]
        assert reply.get("field") == field
    assert runs(ctx.db, made_elsewhere=True) == []
    visitor = calls(import_data, dataclasses.replace(ctx, operator_secret="secret"))
    assert "Only the operator" in visitor.import_run({"path": str(good)})["error"]


@pytest.mark.parametrize("payload", [{"column_mapping": [1]}, {"source": "x"}, {"source": None}, {"answers": "x"}])
def test_a_malformed_request_is_refused(ctx, screen, upload, payload):
    for request in (screen.preview, screen.save):
        assert "no usable" in request(upload(ROWS) | MAPPED | payload)["error"]
    assert screen.imports()["imports"] == []


def test_a_process_that_ends_or_hangs_is_an_error(monkeypatch):
    def hang(*_, timeout, **__):
        raise subprocess.TimeoutExpired("import", timeout)

    monkeypatch.setattr(import_process.subprocess, "run", hang)
    with pytest.raises(DataError, match=r"longer than 5 minutes.*nothing was imported"):
        import_process.run_in_subprocess({"what": "x"})
    killed = subprocess.CompletedProcess([], -9, stdout="", stderr="")
    monkeypatch.setattr(import_process.subprocess, "run", lambda *_, **__: killed)
    with pytest.raises(DataError, match=r"ended unexpectedly; nothing was imported.*in parts"):
        import_process.run_in_subprocess({"what": "x"})
    with pytest.raises(DataError, match=r"ended unexpectedly; rows imported until then are kept"):
        import_process.run_in_subprocess({"what": "x", "save": True})


def test_the_form_maps_every_meaning_of_the_command_line(screen, upload):
    """Also those of columns with spaces in their names."""
    names = [*import_data.MAIN_MEANINGS, *(name for name in MEANINGS if name not in import_data.MAIN_MEANINGS)]
    assert sorted(names) == sorted(MEANINGS)
    row = {"prompt": "Another?", "chosen": "a", "rejected": "b", "when it was": "2026-11-28", "before": [["Hi.", "Hello."]],
           "rules": "Be brief.", "my id": "u1", "which pair": "7"}  # fmt: skip
    mapping = {
        "created_at": "when it was",
        "history": "before",
        "system": "rules",
        "uuid": "my id",
        "pair": "which pair",
    }
    request = upload([row]) | {"column_mapping": mapping}
    preview = screen.preview(request)["preview"]
    assert mapping.items() <= preview["mapping"].items()
    assert [turn["content"] for turn in preview["first_rows"][0]["turns"]] == ["Be brief.", "Hi.", "Hello.", "Another?"]
    assert preview["columns"][: len(row)] == list(row)
    undone = screen.preview(request | {"column_mapping": mapping | {"history": ""}})["preview"]
    assert len(undone["first_rows"][0]["turns"]) == 2


NESTED = {"meta": {"who": "ann"}, "chosen": "a", "rejected": "b"}


@pytest.mark.parametrize(
    "row",
    [NESTED | {"topic": "x y", "tone": "z"}, NESTED | {"prompt": "p", "question": "q"}, NESTED | {"prompt": "p", "label": 1},
     NESTED | {"prompt": "p", "note": "tie"}, NESTED | {"prompt": "[INST] p"}, NESTED | {"prompt": '[{"role": "user"'}],
)  # fmt: skip
def test_every_question_offers_parts_of_columns(screen, upload, row):
    assert "meta.who" in screen.preview(upload([row]))["question"]["columns"]


def test_a_question_has_answers_to_choose_from(screen, upload):
    row = {"prompt": "p", "response_a": "a", "response_b": "b", "score_a": "1.200", "score_b": "900"}
    request = upload([row])
    question = screen.preview(request)["question"]
    assert list(question["answers"]) == ["numbers=decimal", "numbers=thousands"]
    assert question["text"] == "The scores hold '1.200' and '900'. Choose an answer below."
    for answer, choice in (("numbers=decimal", "second"), ("numbers=thousands", "first")):
        preview = screen.preview(request | {"answers": [answer, "no such answer"]})["preview"]
        assert preview["choices"] == {choice: 1}


def test_remedies_name_the_fields_of_the_page(screen, upload):
    rows = [{"prompt": "p", "chosen": "a", "rejected": "b", "label": word} for word in ("harmless", "b")]
    preview = screen.preview(upload(rows))["preview"]
    assert (len(preview["errors"]), preview["error_count"]) == (2, 2)
    for text in (*preview["errors"], screen.save(upload(rows))["error"]):
        assert "--" not in text
        assert 'choose "no column" for "choice"' in text
