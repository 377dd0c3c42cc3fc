"""A run as one HTML file: what is in it, and that no text can leave its place."""

import html
import json
import re

import pytest
from fake_blind_tests import finish_jobs, start
from fake_runs import KL, SCORE, a_run

from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import Choice
from rlhf_lab.common.records import Sample, StepResult, TokenRecord
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError
from rlhf_lab.store.blind_tests import add_answers
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run
from rlhf_lab.ui.share import page as share
from rlhf_lab.ui.share.page import import_map, resolve, share_page
from rlhf_lab.ui.share.recording import blind_pairs, record, spread_out

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \u2028 ${x} <!--"
TOKENS = TokenRecord(
    row=0, prompt="Once", token_ids=[5], tokens=[HOSTILE], logprob=[-1.0], old_logprob=[-1.1], ref_logprob=[-1.0], kl=[-0.1],
    value=[0.5], reward=[0.0], advantage=[1.0], ratio=[1.1], clipped=[False], raw_advantage=[0.5], target=[1.0],
)  # fmt: skip


@pytest.fixture
def run(ctx):
    run = a_run(ctx, name=HOSTILE[:60], steps=2)
    for at in range(3):
        samples = [Sample(HOSTILE, seed, f"{HOSTILE} {at * seed}", 0.5 * at) for seed in range(2)]
        metrics = {SCORE: float(at), KL: 0.1 * at, "policy/clipfrac_avg": float("nan")} if at else {}
        record_step(ctx.db, run.id, StepResult(at, metrics, [TOKENS] if at else [], samples))
    return run


def data_of(page):
    return json.loads(re.search(r'id="recording">(.*?)</script>', page, re.DOTALL)[1])


def test_the_data_is_complete_and_no_text_ends_its_element(ctx, run):
    page = share_page(record(ctx, run.id))
    data = data_of(page)
    assert page.count("</script>") == 3  # import map, data, entry
    assert data["title"] == HOSTILE[:60]
    assert [point[1] for point in data["feed"]["points"][SCORE]] == [1, 2]
    assert sorted(data["samples"]) == ["0", "1", "2"]
    assert data["tokens"]["2"]["rows"][0]["tokens"] == [HOSTILE]
    assert next(item for item in data["settings"] if item["name"] == "beta")["value"] == "0.1"
    assert data["labelled_by"] == []
    assert [point[1] for point in data["feed"]["points"]["policy/clipfrac_avg"]] == [None, None]


def test_pairs_are_the_texts_of_policy_and_base_on_sides_that_a_seed_chooses(ctx, run):
    (pair,) = record(ctx, run.id)["pairs"]  # the other sample is the base's own text
    assert pair["texts"][pair["policy"]] == f"{HOSTILE} 2".strip()
    assert pair["prompt"] == HOSTILE
    many = a_run(ctx, name="many pairs")
    for at, name in ((0, "old"), (5, "new")):
        samples = [Sample(f"prompt {i}", i, f"{name} {i}", 0.0) for i in range(30)]
        record_step(ctx.db, many.id, StepResult(at, {SCORE: 0.0} if at else {}, [], samples))
    pairs = blind_pairs(ctx.db, many.id, 5)
    assert len(pairs) == 20
    assert {pair["policy"] for pair in pairs} == {0, 1}
    assert all(pair["texts"][pair["policy"]].startswith("new") for pair in pairs)


def test_only_this_run_and_only_changed_settings_are_named(ctx, run):
    a_run(ctx, name="a secret plan")
    untouched = PolicyConfig.for_algorithm("ppo")
    row = create_run(
        ctx.db,
        ctx.project.id,
        run.reward_model_id,
        "as recommended",
        config=untouched.to_dict(),
        manifest={},
        total_steps=9,
    )
    recording = record(ctx, row.id)
    assert "a secret plan" not in share_page(recording)
    assert [item["name"] for item in recording["settings"] if item["is_changed"]] == []


def test_the_result_of_the_labs_own_blind_test_is_beside_the_readers(ctx, run):
    test = start(ctx)
    assert record(ctx, run.id)["blind_test"] == ""
    finish_jobs(ctx, test)
    add_answers(ctx.db, test.id, "Ann", {0: Choice.SECOND, 1: Choice.SECOND, 3: Choice.FIRST})
    text = record(ctx, run.id)["blind_test"]
    assert text.startswith("Those who judged like run 1, step 40 more often: 2 of 3 decided answers")
    assert "Ann" not in share_page(record(ctx, run.id))


def test_scripts_import_each_other_by_names_that_the_map_has():
    imports = json.loads(import_map())["imports"]
    assert "lab/share/view.js" in imports
    assert resolve(share.PurePosixPath("share"), "../shared/dom.js") == "shared/dom.js"
    assert all(address.startswith("data:text/javascript;base64,") for address in imports.values())


def test_many_steps_are_thinned_evenly():
    assert spread_out(list(range(10)), 4) == [0, 3, 6, 9]
    assert spread_out([1, 2], 4) == [1, 2]


def test_a_page_that_is_too_large_is_refused(ctx, run, monkeypatch):
    monkeypatch.setattr(share, "MAX_BYTES", 1000)
    with pytest.raises(ConfigError, match=r"at most .* are useful to share"):
        share_page(record(ctx, run.id))


def test_an_index_lists_the_pages_of_a_folder(ctx, run, tmp_path):
    words = ["share", str(run.id), "--home", str(ctx.home), "--index", "--json", "--out"]
    (tmp_path / "other.html").write_bytes(b"<p>no recording \xff</p>")
    for name in ("first.html", "a & b.html"):
        assert main([*words, str(tmp_path / name)]) == 0
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'href="([^"]+)"', index) == ["a%20%26%20b.html", "first.html"]
    assert "<script" not in index
    assert html.escape(HOSTILE[:60]) in index
    (tmp_path / "index.html").write_text("my own page")
    assert main([*words, str(tmp_path / "third.html")]) == 1
    assert (tmp_path / "index.html").read_text() == "my own page"
    assert main([*words, str(tmp_path / "new" / "index.html")]) == 1


def test_the_command_writes_the_file_once(ctx, run, tmp_path, capsys):
    words = ["share", str(run.id), "--home", str(ctx.home), "--out", str(tmp_path / "new" / "page.html"), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == 1
    assert main(words) == 1
    assert "add --force" in capsys.readouterr().err
