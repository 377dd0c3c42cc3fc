"""Import, export and the quality of annotators, in a real browser."""

import json
import re

from helpers import control, wait_until
from playwright.sync_api import expect
from prepared_labs import add_labels

from rlhf_lab.common.enums import JobKind, JobStatus, Source
from rlhf_lab.jobs import queue
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project


def open_section(page, section):
    page.get_by_role("tab", name="Runs & data").click()
    page.get_by_role("heading", name="Export").wait_for()  # above the section: what comes later moves it down
    page.locator(f"#{section} > button").click()


def test_metrics_of_a_run_made_elsewhere_are_imported_into_the_list(lab, open_page, tmp_path):
    page = open_page(lab)
    open_section(page, "runs-import")
    log, bad = tmp_path / "log.csv", tmp_path / "bad.csv"
    bad.write_text("a,b\n1,2\n")
    log.write_text("step,loss\n" + "".join(f"{step},{1 / step}\n" for step in range(1, 9)))
    control(page, "run-metrics-updates").fill("4")
    control(page, "run-metrics-name").fill("theirs")
    control(page, "run-metrics-file").set_input_files(bad)
    notice = control(page, "run-metrics-notice")
    expect(notice).to_contain_text("Each row needs one, in a column named step")
    expect(control(page, "run-metrics-choose")).to_be_enabled()
    control(page, "run-metrics-file").set_input_files(log)
    expect(notice).to_contain_text("made elsewhere: 2 steps, 1 metric")
    expect(page.locator(".lab-runs .list")).to_contain_text("theirs")


def vote_rows():
    """Votes of three people on twelve pairs, cy against the others. The texts contain markup."""
    rows = []
    for i in range(12):
        for who in ("ann", "bob", "cy"):
            better = i % 2 if who != "cy" else 1 - i % 2
            rows.append(
                {"prompt": f"Tell <b>{i}</b>", "first": "<img src=x onerror=alert(1)>", "second": f"text {i}", "annotator": who,
                 "winner": ("first", "second")[better]}
            )  # fmt: skip
    return rows


def test_import_agreement_training_without_an_annotator_and_export(lab, open_page, tmp_path):
    page = open_page(lab)
    open_section(page, "runs-import")
    broken, good = tmp_path / "broken.jsonl", tmp_path / "votes.jsonl"
    broken.write_text(json.dumps(vote_rows()[0]) + "\n" + '{"prompt": ')
    good.write_text("\n".join(json.dumps(row) for row in vote_rows()))

    control(page, "data-file").set_input_files(broken)
    expect(control(page, "data-problems")).to_contain_text("row 2 (line 2): not JSON")
    control(page, "data-import").click()
    expect(control(page, "data-notice")).to_contain_text("nothing was imported")

    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"asked": "Why?", "liked": "a", "other": "b"}))
    control(page, "data-file").set_input_files(own)
    expect(control(page, "data-question")).to_contain_text("no pair of texts that the lab knows by name")
    for meaning, column in (("prompt", "asked"), ("chosen", "liked"), ("rejected", "other")):
        page.locator(f'[data-map="{meaning}"]').select_option(column)
    control(page, "data-again").click()
    expect(control(page, "data-counts")).to_contain_text("1 row, 1 vote on 1 prompt")
    expect(control(page, "data-doubts")).to_have_count(0)
    twice = tmp_path / "twice.jsonl"
    pair = {"prompt": "Why?", "chosen": "a", "rejected": "b"}
    twice.write_text("\n".join(json.dumps(row) for row in (pair, pair, pair | {"chosen": "b"}, pair | {"chosen": " "})))
    control(page, "data-file").set_input_files(twice)
    expect(control(page, "data-doubts")).to_contain_text(
        "1 vote by a person who has already compared the same two texts"
    )
    expect(control(page, "data-doubts")).to_contain_text("1 comparison of a text with itself")
    expect(control(page, "data-doubts")).to_contain_text("1 comparison with an empty text")

    control(page, "data-file").set_input_files(good)
    expect(control(page, "data-counts")).to_contain_text("36 rows, 36 votes on 12 prompts")
    control(page, "data-import").click()
    expect(control(page, "data-notice")).to_contain_text("Imported: 36 votes from votes.jsonl, on 12 new pairs")

    page.locator("#runs-quality > button").click()
    expect(control(page, "quality-agreement")).to_have_text("33 %")
    expect(page.locator('.lab-quality tr[data-name="cy"]')).to_contain_text(
        "the others agree better without this person"
    )
    expect(page.locator(".lab-quality [data-trend=alpha]")).to_contain_text("alpha over time")
    course = page.locator('.lab-quality tr[data-name="cy"] .spark')
    control(page, "quality-trend").select_option("ties")
    expect(course).to_have_attribute("aria-label", re.compile("^share of ties of cy over time: .*%"))
    # A training of these labels starts automatically; the button is disabled meanwhile.
    with Database.open(lab.home) as db:
        project = current_project(db).id
        wait_until(lambda: queue.jobs(db, project_id=project, kinds=[JobKind.TRAIN_REWARD]), "a training", page)
        expect(control(page, "quality-train")).to_be_disabled()
        queue.cancel(db, queue.jobs(db, project_id=project, kinds=[JobKind.TRAIN_REWARD])[0].id)
    expect(control(page, "quality-train")).to_be_enabled()
    page.locator('[data-do="quality-weight"][data-name="cy"]').select_option("0")
    expect(page.locator(".lab-quality .train")).to_contain_text("Without 1 of 3.")
    control(page, "quality-train").click()
    expect(control(page, "quality-notice")).to_contain_text("from 2 of 3 annotators is being trained")
    with Database.open(lab.home) as db:
        (job,) = queue.jobs(db, project_id=project, kinds=[JobKind.TRAIN_REWARD], statuses=[JobStatus.QUEUED])
        assert job.payload["annotators"] == ["ann", "bob"]
        queue.cancel(db, job.id)

    control(page, "export-layout").select_option("explicit")
    control(page, "export-format").select_option("parquet")
    with page.expect_download() as caught:
        control(page, "export-dataset").click()
    with Database.open(lab.home) as db:
        assert caught.value.suggested_filename == f"labels-project-{current_project(db).id}.zip"
    assert page.locator("img[src=x]").count() == 0


def test_import_is_undone_after_a_confirmation(lab, open_page):
    page = open_page(lab)
    open_section(page, "runs-import")
    name = "<img src=x onerror=alert(1)>.jsonl"
    file = {
        "name": name,
        "mimeType": "application/json",
        "buffer": json.dumps({**vote_rows()[0], "prompt": "back"}).encode(),
    }
    control(page, "data-file").set_input_files(file)
    control(page, "data-import").click()
    expect(control(page, "data-notice")).to_contain_text(", on 1 new pair and")
    listed = page.locator(".lab-import-data .past li").filter(has_text=name)
    expect(listed).to_contain_text("1 vote, 1 new pair")

    control(page, "data-file").set_input_files(file)
    expect(control(page, "data-doubts")).to_contain_text("1 vote already in this project, left out")
    control(page, "data-source").select_option("simulated")
    expect(control(page, "data-doubts")).to_have_text(
        re.compile("^Please check: 1 vote by a person who has already compared")
    )

    listed.locator("[data-do=data-back]").click()
    expect(page.locator(".lab-question")).to_contain_text("1 vote and 1 pair will be removed.")
    control(page, "data-back-leave").click()
    expect(listed.locator("[data-do=data-back]")).to_be_focused()
    listed.locator("[data-do=data-back]").click()
    control(page, "data-back-sure").click()
    expect(control(page, "data-notice")).to_have_text("Undone: 1 vote and 1 pair removed.")
    expect(listed).to_contain_text("0 of 1 vote, 0 of 1 new pair (undone)")
    expect(listed.locator("button")).to_have_count(0)
    assert page.locator("img[src=x]").count() == 0


def test_the_form_stays_after_an_error_and_questions_have_answers(lab, open_page):
    """A column whose name has a space is mapped, the words of votes are mistyped and mended, and a question is answered."""
    page = open_page(lab)
    open_section(page, "runs-import")
    row = {
        "prompt": "form",
        "one": "x",
        "other": "y",
        "is better": "A=B",
        "points one": "1.200",
        "points two": "900",
        "when it was": "2026-11-28",
    }
    file = {"name": "form.jsonl", "mimeType": "application/json", "buffer": json.dumps(row).encode()}
    control(page, "data-file").set_input_files(file)
    expect(control(page, "data-question")).to_contain_text("no pair of texts")
    expect(control(page, "data-question")).not_to_contain_text("--map")
    for meaning, column in (
        ("first", "one"),
        ("second", "other"),
        ("choice", "is better"),
        ("created_at", "when it was"),
    ):
        page.locator(f'[data-map="{meaning}"]').select_option(column)
    control(page, "data-choices").fill("A=B")
    control(page, "data-again").click()
    expect(control(page, "data-notice")).to_contain_text("is not WORD=CHOICE")
    expect(page.locator('[data-map="choice"]')).to_have_value("is better")
    expect(control(page, "data-choices")).to_have_value("A=B")
    control(page, "data-choices").fill("A=B=tie")
    control(page, "data-again").click()
    expect(control(page, "data-counts")).to_contain_text("1 row, 1 vote on 1 prompt")
    expect(control(page, "data-counts")).to_contain_text("1 tie")
    page.get_by_text("Which column means what").click()
    page.get_by_text("Further columns").click()
    page.locator('[data-map="uuid"]').select_option("when it was")
    for meaning, column in (("choice", ""), ("score_first", "points one"), ("score_second", "points two")):
        page.locator(f'[data-map="{meaning}"]').select_option(column)
    control(page, "data-choices").fill("")
    control(page, "data-again").click()
    expect(control(page, "data-question")).to_contain_text("'1.200' and '900'")
    page.locator('[data-answer="numbers=thousands"]').click()
    expect(control(page, "data-counts")).to_contain_text("1 first")
    control(page, "data-skip_broken").check()
    control(page, "data-counts").evaluate("(node) => node.dataset.drawn = 'before'")
    control(page, "data-annotator").fill("ann")
    control(page, "data-annotator").blur()
    expect(page.locator("[data-drawn=before]")).to_have_count(0)  # the preview is drawn again
    expect(control(page, "data-skip_broken")).to_be_checked()
    expect(page.locator('[data-map="uuid"]')).to_have_value("when it was")
    control(page, "data-forget").click()
    expect(control(page, "data-question")).to_contain_text("'1.200' and '900'")


def test_the_question_which_column_is_the_prompt_is_seen_on_a_phone(lab, open_page, tmp_path):
    row = {
        "topic": "How long does an egg boil?",
        "source": "a book",
        "chosen": "Eight minutes.",
        "rejected": "Far away.",
    }
    path = tmp_path / "eggs.jsonl"
    path.write_text(json.dumps(row))
    page = open_page(lab, viewport={"width": 390, "height": 844})
    open_section(page, "runs-import")
    control(page, "data-file").set_input_files(path)
    question = control(page, "data-question")
    expect(question).to_contain_text('The prompt may be in "topic" or "source"')
    expect(question).to_be_in_viewport(ratio=0.99)  # scrolling ends at whole pixels, texts may not
    prompt = page.locator('[data-map="prompt"]')
    assert question.bounding_box()["y"] < prompt.bounding_box()["y"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    prompt.select_option("topic")
    control(page, "data-again").click()
    expect(control(page, "data-counts")).to_contain_text("1 row, 1 vote on 1 prompt")
    expect(question).to_have_count(0)
    page.locator("#runs-quality > button").click()
    expect(control(page, "quality-alpha")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_preview_says_what_is_not_used_and_a_column_can_be_left_out(lab, open_page, tmp_path):
    row = {"question": "Why?", "context": "Physics.", "chosen": "So.", "rejected": "No.", "label": 1}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    page = open_page(lab)
    open_section(page, "runs-import")
    control(page, "data-file").set_input_files(path)
    expect(control(page, "data-question")).to_contain_text('Several columns can mean "prompt": question, context')
    page.locator('[data-map="prompt"]').select_option("question")
    control(page, "data-again").click()
    expect(control(page, "data-question")).to_contain_text("vote with 1")
    page.locator('[data-map="choice"]').select_option(label="no column")
    control(page, "data-again").click()
    expect(control(page, "data-unused")).to_have_text("Not used: context, label")
    page.locator('[data-map="input"]').select_option("context", force=True)
    control(page, "data-again").dispatch_event("click")
    expect(control(page, "data-unused")).to_have_text("Not used: label")


def test_a_file_is_announced_while_it_is_written_and_the_page_goes_on(lab, idle_project, open_page):
    with Database.open(lab.home) as db:
        add_labels(db, idle_project.id, Source.SIMULATED, 5)
    page = open_page(lab)
    page.get_by_role("tab", name="Runs & data").click()
    expect(control(page, "export-labels")).to_be_enabled()
    held_requests = []

    def hold(route):
        held_requests.append(route)

    page.route(re.compile("lab-api/runs/export"), hold)
    notice = control(page, "runs-notice")
    control(page, "export-labels").click()
    expect(notice).to_have_text("Writing the file …")
    page.get_by_role("tab", name="People").click()
    page.get_by_role("tab", name="Runs & data").click()
    control(page, "export-names").select_option("false")  # the card is in use
    expect(notice).to_have_text("Writing the file …")
    with page.expect_download() as caught:
        held_requests[0].continue_()
    assert len(caught.value.path().read_text().splitlines()) == 5
    expect(control(page, "export-link")).to_be_visible()
