"""A run as one HTML file: what is in it, and that no text can leave its place."""

import html
import json
import re

import pytest
from fake_blind_tests import BASE, RUN, finish_jobs, start
from fake_runs import KL, SCORE, a_run, write_checkpoint

from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import Choice, JobKind, RunStatus
from rlhf_lab.common.records import PairKey, Sample, StepResult, TokenRecord
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.store import tables as t
from rlhf_lab.store.blind_tests import add_answers, end_test
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run, set_run_status
from rlhf_lab.store.tournaments import add_tournament, answer_tournament_pair, lease_tournament_pair
from rlhf_lab.ui.share import page as share
from rlhf_lab.ui.share.page import import_map, resolve, share_page
from rlhf_lab.ui.share.recording import blind_pairs, evenly_spaced, record

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


def add_test(ctx, answers, first="base"):
    test = start(ctx, models=[first, "run/1/40", ""])
    texts = [f"{text}{i}" for text in BASE for i in range(4)] if "best" in first else BASE
    finish_jobs(ctx, test, (texts, RUN), ([0.5] * len(texts), [0.5] * 4))
    for who, choices in answers.items():
        add_answers(ctx.db, test.id, who, choices)
    return test


WHOLE = {0: Choice.SECOND, 1: Choice.SECOND, 3: Choice.FIRST}


def test_the_reader_answers_the_pairs_of_the_labs_own_blind_test(ctx, run):
    """All that were judged: not the one with the same text twice."""
    add_test(ctx, {"Ann": WHOLE})
    recording = record(ctx, run.id)
    found = [(pair["texts"][pair["policy"]], pair["texts"][1 - pair["policy"]]) for pair in recording["pairs"]]
    assert found == [("A", "a"), ("B", "b"), ("D", "d")]
    assert recording["has_tested_pairs"] is True
    assert [len(row) for row in recording["intervals"]] == [1, 2, 3, 4]
    assert recording["intervals"][1] == [(0.0, pytest.approx(0.975)), (pytest.approx(0.025), 1.0)]  # p = 0.025
    assert recording["intervals"][3][3] == (pytest.approx(0.025 ** (1 / 3)), 1.0)  # p³ = 0.025
    assert all(pair["turns"][-1]["content"] in pair["prompt"] for pair in recording["pairs"])


@pytest.mark.parametrize(
    ("answers", "is_shared", "has_ended", "is_published"),
    [
        ({}, False, True, False),
        ({"Ann": {0: Choice.SKIP}}, False, True, False),
        ({"Ann": {0: Choice.SECOND}}, False, False, False), ({"Ann": {0: Choice.SECOND}}, False, True, True),
        ({"Ann": WHOLE, "Bob": WHOLE}, False, False, False), ({"Ann": WHOLE}, True, False, False),
        ({"Ann": WHOLE, "Bob": {0: Choice.FIRST}}, True, True, True),
    ],
)  # fmt: skip
def test_a_blind_test_that_somebody_may_still_judge_is_not_published(
    ctx, run, answers, is_shared, has_ended, is_published
):
    """Neither its pairs, which say who wrote what, nor its result."""
    test = add_test(ctx, answers)
    if has_ended:
        end_test(ctx.db, test.id)
    shared = ctx.as_multi_user(open_to_all=True) if is_shared else ctx
    recording = record(shared, run.id)
    assert recording["has_tested_pairs"] is is_published
    assert (recording["blind_test"] != "") is is_published
    assert (recording["pairs"][0]["prompt"] == HOSTILE) is not is_published


@pytest.mark.parametrize("other", ["base/best/4", "run/1/20"])
def test_pairs_of_a_test_against_another_model_than_the_base_are_not_the_readers(ctx, run, other):
    write_checkpoint(ctx, run.id, 20)
    add_test(ctx, {"Ann": WHOLE | {2: Choice.TIE}}, other)
    recording = record(ctx, run.id)
    assert recording["has_tested_pairs"] is False
    assert recording["blind_test"] != ""
    add_test(ctx, {"Ann": WHOLE})
    add_test(ctx, {"Ann": WHOLE | {2: Choice.TIE}}, other)  # a newer one
    recording = record(ctx, run.id)
    assert recording["has_tested_pairs"] is True
    assert recording["blind_test"].startswith("Those who judged like run 1, step 40 more often: 2 of 3")


def test_the_ranking_of_the_newest_tournament_with_the_run_is_on_the_page(ctx, run):
    """Two of three models; the run won both of its comparisons, so its score has no upper end. Names of people are left out."""
    other = a_run(ctx, name="another run")
    for models, winner in ((["base", f"run/{other.id}/2"], None), (["base", f"run/{run.id}/2"], Choice.SECOND)):
        job = queue.submit(ctx.db, JobKind.TOURNAMENT, ctx.project.id, {"contestants": models, "prompts": ["P", "Q"]})
        held = add_tournament(ctx.db, ctx.project.id, job.id)
        assert record(ctx, run.id)["ranking"] is None
        queue.claim(ctx.db, [JobKind.TOURNAMENT], engine_process.record_heartbeat(ctx.db, "x"))
        rows = [{"model": model, "texts": [f"{model} {i}" for i in range(2)], "scores": [0.5] * 2, "kl": [0.25] * 2}
                for model in models]  # fmt: skip
        queue.finish(ctx.db, job.id, {"prompts": ["P", "Q"], "contestants": rows})
        assert record(ctx, run.id)["ranking"] is None  # nobody has judged
        for position in range(2) if winner else ():
            key = PairKey(position, 0, 1)
            lease_tournament_pair(ctx.db, held.id, "Ann", lambda *_, key=key: key, now=1.0)
            answer_tournament_pair(ctx.db, held.id, "Ann", key, winner)
    assert record(ctx, run.id)["ranking"] is None  # somebody judges, or may come back
    with ctx.db.write() as conn:
        conn.execute(t.tournament_answers.update().values(created_at=100.0))
    page = share_page(record(ctx, run.id))
    ranking = data_of(page)["ranking"]
    assert (ranking["answers"], [row["name"] for row in ranking["rows"]]) == (
        2,
        [f"run {run.id}, step 2", "base model"],
    )
    first = ranking["rows"][0]
    assert first["low"] < first["score"]
    assert first["high"] is None
    assert ranking["wins"] == [[0, 2], [0, 0]]
    assert "Ann" not in page


def test_scripts_import_each_other_by_names_that_the_map_has():
    imports = json.loads(import_map())["imports"]
    assert "lab/share/view.js" in imports
    assert resolve(share.PurePosixPath("share"), "../shared/dom.js") == "shared/dom.js"
    assert all(address.startswith("data:text/javascript;base64,") for address in imports.values())


def test_many_steps_are_thinned_evenly():
    assert evenly_spaced(list(range(10)), 4) == [0, 3, 6, 9]
    assert evenly_spaced([1, 2], 4) == [1, 2]


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


@pytest.mark.parametrize("name", ["", "file/page.html"])
def test_a_file_that_cannot_be_written_is_an_error(ctx, run, tmp_path, capsys, name):
    """A folder, and a file in a file."""
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "file").write_text("mine")
    assert main(["share", str(run.id), "--home", str(ctx.home), "--force", "--json", "--out", str(folder / name)]) == 1
    assert "cannot be written" in json.loads(capsys.readouterr().out)["error"]
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_a_folder_with_the_name_of_a_page_is_not_listed(ctx, run, tmp_path):
    (tmp_path / "folder.html").mkdir()
    assert main(["share", str(run.id), "--home", str(ctx.home), "--index", "--out", str(tmp_path / "page.html")]) == 0
    assert "folder.html" not in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_the_message_of_a_run_that_failed_is_not_published(ctx, run):
    set_run_status(ctx.db, run.id, RunStatus.FAILED, "the disk of /home/anna is full")
    assert "anna" not in share_page(record(ctx, run.id))
