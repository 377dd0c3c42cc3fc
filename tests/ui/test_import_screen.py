"""Section "Import preferences" without a browser: only uploaded files are read, in a separate process."""

import dataclasses
import json
import subprocess

import gradio as gr
import pytest

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.errors import ConfigError, DataError, StoreError
from rlhf_lab.importers.column_mapping import MEANINGS
from rlhf_lab.importers.summary import format_undo
from rlhf_lab.store.import_batches import ImportUndo
from rlhf_lab.store.votes import vote_counts
from rlhf_lab.ui.runs.import_data import api as import_data
from rlhf_lab.ui.runs.import_data.api import ImportController, list_imports
from rlhf_lab.ui.shared import import_process
from rlhf_lab.ui.shared.api import parse_payload


@pytest.fixture
def controller(ctx, tmp_path):
    (tmp_path / "uploads").mkdir()
    return ImportController(ctx, uploads=tmp_path / "uploads")


def act(controller, payload):
    return controller.handle_action(parse_payload(import_data.ImportAction, payload))


def upload(controller, rows):
    path = controller.uploads / "votes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(path), "name": "my votes.jsonl"}


ROWS = [{"question": "Why?", "good": "a", "bad": "b"}, {"question": "Who?", "good": "c", "bad": "d"}]


def test_preview_mapping_and_import(controller, ctx):
    file = upload(controller, ROWS)
    file |= {"source": "human"}
    reply = act(controller, {"action": "preview", **file})
    assert reply["columns"] == ["question", "good", "bad"]
    assert reply["error"].endswith('choose a column for "choice". Fill in the fields below, then press Look again.')
    assert "--map" not in reply["error"]
    mapped = {"column_mapping": {"chosen": "good", "rejected": "bad", "no such": "question", "first": ""}}
    preview = act(controller, {"action": "preview", **file, **mapped})["preview"]
    assert (preview["name"], preview["votes"], preview["mapping"]) == (
        "my votes.jsonl", 2, {"prompt": "question", "chosen": "good", "rejected": "bad"},
    )  # fmt: skip
    assert preview["duplicates"] == 0
    assert sum(vote_counts(ctx.db, ctx.project.id)[Source.HUMAN].values()) == 0
    done = act(controller, {"action": "import", **file, **mapped, "annotator": " ann "})
    assert done["message"].startswith("Imported: 2 votes from my votes.jsonl, on ")
    counts = vote_counts(ctx.db, ctx.project.id)[Source.HUMAN]
    assert counts[Choice.FIRST] + counts[Choice.SECOND] == 2
    second_preview = {"action": "preview", **file, **mapped, "annotator": "ann"}
    assert act(controller, second_preview | {"column_mapping": mapped["column_mapping"] | {"rejected": ""}})[
        "columns"
    ]  # "–" removes a meaning
    assert act(controller, second_preview)["preview"]["held"] == 2
    for other in ({"annotator": "bob"}, {"source": "simulated"}):  # whose votes they are decides
        assert act(controller, second_preview | other)["preview"]["held"] == 0


def test_the_page_asks_which_column_is_the_prompt(controller):
    """The empty name says that no column is: the prompt is text at the beginning of both responses."""
    row = {"user": "How long does an egg boil?", "chosen": "The egg boils.", "rejected": "The moon is far."}
    request = {"action": "preview", **upload(controller, [row]), "source": "human"}
    reply = act(controller, request)
    assert reply["columns"] == ["user", "chosen", "rejected"]
    assert reply["error"].startswith(
        'No column is called prompt. The prompt may be in "user", or be the shared beginning'
    )
    assert "--map" not in reply["error"]
    for column, prompt in (("user", "How long does an egg boil?"), ("", "The")):
        preview = act(controller, request | {"column_mapping": {"prompt": column}})["preview"]
        assert preview["first_rows"][0]["prompt"] == prompt


def test_imports_are_listed_and_undone(controller, ctx):
    mapped = {"column_mapping": {"prompt": "question", "chosen": "good", "rejected": "bad"}, "source": "human"}
    act(controller, {"action": "import", **upload(controller, ROWS), **mapped})
    listed = list_imports(ctx)
    (record,) = listed["imports"]
    assert (record["name"], record["imported_by"], record["votes_left"], record["pairs_left"]) == (
        "my votes.jsonl",
        "operator",
        2,
        2,
    )
    payload = {"project": listed["project"], "import": record["id"]}
    assert act(controller, {"action": "ask", **payload}) == {"deletion_summary": "2 votes and 2 pairs will be removed."}
    with pytest.raises(ConfigError, match="Another project has been opened"):
        act(controller, {"action": "back", **payload, "project": listed["project"] + 1})
    for wrong in (record["id"] + 1, 2**70):
        with pytest.raises(StoreError):
            act(controller, {"action": "back", **payload, "import": wrong})
    assert list_imports(ctx) == listed
    assert act(controller, {"action": "back", **payload}) == {"message": "Undone: 2 votes and 2 pairs removed."}
    assert sum(vote_counts(ctx.db, ctx.project.id)[Source.HUMAN].values()) == 0
    with pytest.raises(StoreError, match="already"):
        act(controller, {"action": "back", **payload})
    assert list_imports(ctx)["imports"][0]["votes_left"] == 0


def test_only_the_operator_undoes_imports(ctx, controller, calls):
    mapped = {"column_mapping": {"prompt": "question", "chosen": "good", "rejected": "bad"}, "source": "human"}
    act(controller, {"action": "import", **upload(controller, ROWS), **mapped})
    record = list_imports(ctx)["imports"][0]
    handler = calls(import_data, dataclasses.replace(ctx, operator_secret="secret")).action
    for action in ("ask", "back"):
        event = gr.EventData(
            None, {"action": action, "project": ctx.project.id, "import": record["id"], "request_id": 1}
        )
        assert "Only the operator" in handler("guess", event)["error"]
    assert list_imports(ctx)["imports"] == [record]


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


def test_no_other_file_of_this_machine_is_read(controller, ctx, tmp_path):
    (tmp_path / "secret.jsonl").write_text(json.dumps(ROWS[0]))
    for path in (
        tmp_path / "secret.jsonl",
        controller.uploads / ".." / "secret.jsonl",
        controller.uploads / "none",
        controller.uploads,
    ):
        with pytest.raises(ConfigError, match="is missing"):
            act(controller, {"action": "preview", "path": str(path)})
    for name in ("", "secret.jsonl", "../secret", "a b/c", "rlhf_lab/ui"):
        with pytest.raises(ConfigError, match="OWNER/NAME"):
            act(controller, {"action": "preview", "dataset": name})


def test_a_hub_data_set_is_passed_to_the_process(ctx, tmp_path):
    requests = []

    def run(request):
        requests.append(request)
        return {"preview": {"votes": 1}}

    payload = {"action": "preview", "dataset": " someone/pairs ", "split": "test", "source": "human"}
    for further in ({}, {"config": " en "}):
        act(ImportController(ctx, runner=run, uploads=tmp_path), payload | further)
    common = {"home": str(ctx.home), "project": ctx.project.id, "source": "human", "annotator": ""}
    common |= {"map": {}, "choices": "", "answers": [], "what": "someone/pairs", "split": "test"}
    assert requests == [common, common | {"config": "en"}]


@pytest.mark.parametrize(
    "payload",
    [{"action": "dance"}, {"action": "preview", "column_mapping": [1]}, {"action": "import", "source": "x"}],
)
def test_a_malformed_action_is_refused(controller, payload):
    with pytest.raises(ConfigError):
        act(controller, {**upload(controller, ROWS), **payload})


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


def test_the_form_maps_every_meaning_of_the_command_line(controller):
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
    request = {"action": "preview", **upload(controller, [row]), "source": "human", "column_mapping": mapping}
    preview = act(controller, request)["preview"]
    assert mapping.items() <= preview["mapping"].items()
    assert [turn["content"] for turn in preview["first_rows"][0]["turns"]] == ["Be brief.", "Hi.", "Hello.", "Another?"]
    assert preview["columns"][: len(row)] == list(row)
    undone = act(controller, request | {"column_mapping": mapping | {"history": ""}})["preview"]
    assert len(undone["first_rows"][0]["turns"]) == 2


NESTED = {"meta": {"who": "ann"}, "chosen": "a", "rejected": "b"}


@pytest.mark.parametrize(
    "row",
    [NESTED | {"topic": "x y", "tone": "z"}, NESTED | {"prompt": "p", "question": "q"}, NESTED | {"prompt": "p", "label": 1},
     NESTED | {"prompt": "p", "note": "tie"}, NESTED | {"prompt": "[INST] p"}, NESTED | {"prompt": '[{"role": "user"'}],
)  # fmt: skip
def test_every_question_offers_parts_of_columns(controller, row):
    reply = act(controller, {"action": "preview", **upload(controller, [row]), "source": "human"})
    assert "meta.who" in reply["columns"]


def test_a_question_has_answers_to_choose_from(controller):
    row = {"prompt": "p", "response_a": "a", "response_b": "b", "score_a": "1.200", "score_b": "900"}
    request = {"action": "preview", **upload(controller, [row]), "source": "human"}
    reply = act(controller, request)
    assert list(reply["answers"]) == ["numbers=decimal", "numbers=thousands"]
    assert reply["error"] == "The scores hold '1.200' and '900'. Choose an answer below."
    for answer, choice in (("numbers=decimal", "second"), ("numbers=thousands", "first")):
        preview = act(controller, request | {"answers": [answer, "no such answer"]})["preview"]
        assert preview["choices"] == {choice: 1}


def test_remedies_name_the_fields_of_the_page(controller):
    rows = [{"prompt": "p", "chosen": "a", "rejected": "b", "label": word} for word in ("harmless", "b")]
    request = {"action": "preview", **upload(controller, rows), "source": "human"}
    preview = act(controller, request)["preview"]
    assert len(preview["errors"]) == 2
    with pytest.raises(DataError) as caught:
        act(controller, request | {"action": "import"})
    for text in (*preview["errors"], str(caught.value)):
        assert "--" not in text
        assert 'choose "no column" for "choice"' in text
