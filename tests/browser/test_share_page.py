"""A shared page in a browser, from a file and without a network: its texts, its blind test, and its votes read by a lab."""

import dataclasses
import json
import subprocess
import sys

import pytest
from helpers import control
from playwright.sync_api import expect

from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import LabelSnapshot, Sample, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.quality.tournament import Standing
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.share.page import write_page
from rlhf_lab.ui.share.recording import record

HOSTILE = '</script><script>document.title = "broken"</script><img src=x onerror="document.title = 2">'


@pytest.fixture
def shared_page(lab, tmp_path):
    """A file with three steps of two samples and one curve."""
    file = tmp_path / "page.html"
    with Database.open(lab.home) as db:
        project = current_project(db)
        config, labels = PolicyConfig(steps=2).to_dict(), dataclasses.asdict(LabelSnapshot((), "", Source.SIMULATED))
        run = create_run(db, project.id, None, "shared", config=config, manifest={"labels": labels}, total_steps=2)
        for at in range(3):
            samples = [Sample(f"{HOSTILE} {seed}", seed, f"{HOSTILE} {at} {seed}", 0.5 * at) for seed in range(2)]
            record_step(db, run.id, StepResult(at, {"objective/scores": float(at)} if at else {}, [], samples))
        names = {0: "base model", 1: "run 1, step 2"}
        rows = [Standing(i, names[i], 1.5 * i, 0.5 * i, 2.5 * i, 3, 0.0, 0.5, None) for i in (1, 0)]
        ranking = {"answers": 3, "rows": rows, "wins": [[0.0, 2.0], [1.0, 0.0]]}
        write_page({**record(Context(lab.home, db), run.id), "ranking": ranking}, file)
    return file


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_works_without_a_network(shared_page, chromium, width):
    context = chromium.new_context(viewport={"width": width, "height": 900}, offline=True)
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(shared_page.as_uri())
    expect(page.locator(".lab-share h1")).to_have_text("shared")
    expect(page.locator(".lab-chart")).to_have_count(1)
    expect(page.locator(".tournament tr", has_text="1. run 1, step 2")).to_contain_text("1.50")
    expect(page.locator(".tournament")).not_to_contain_text("While somebody judges")
    expect(page.locator(".sample .now .lab-text").first).to_have_text(f"{HOSTILE} 2 0")
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "shared – RLHF Lab"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for choice in ("first", "tie"):
        control(page, choice).click()
    expect(page.locator(".blind [role=status]")).to_contain_text("of 1 decided pair (")
    with page.expect_download() as download:
        control(page, "save-votes").click()
    file = shared_page.with_name("votes.jsonl")
    download.value.save_as(file)
    assert problems == []
    context.close()
    assert [json.loads(line)["tie"] for line in file.read_text().splitlines()] == [False, True]
    command = [
        sys.executable,
        "-m",
        "rlhf_lab",
        "import",
        str(file),
        "--home",
        str(shared_page.parent / "home"),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["imported"] == 2
