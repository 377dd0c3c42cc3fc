"""A run as one HTML file: what is in it, and that no text can leave its place."""

import html
import json
import re

import pytest
from fake_runs import KL, SCORE, a_run

from rlhf_lab.cli.main import main
from rlhf_lab.common.records import Sample, StepResult, TokenRecord
from rlhf_lab.errors import ConfigError
from rlhf_lab.store.run_metrics import record_step
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
    assert (
        "policy/clipfrac_avg" not in data["feed"]["points"]
        or data["feed"]["points"]["policy/clipfrac_avg"][0][1] is None
    )


def test_pairs_are_the_texts_of_policy_and_base_on_sides_that_a_seed_chooses(ctx, run):
    (pair,) = record(ctx, run.id)["pairs"]  # the other sample is the base's own text
    assert pair["texts"][pair["policy"]] == f"{HOSTILE} 2".strip()
    rows = [{"turns": [], "text": f"new {i}", "base_text": f"old {i}"} for i in range(30)]
    pairs = blind_pairs({"run": 1, "step": 2, "rows": rows}, 1)
    assert len(pairs) == 20
    assert {pair["policy"] for pair in pairs} == {0, 1}
    assert all(pair["texts"][pair["policy"]].startswith("new") for pair in pairs)


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
    (tmp_path / "other.html").write_text("<p>no recording</p>")
    for name in ("first.html", "a & b.html"):
        assert main([*words, str(tmp_path / name)]) == 0
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'href="([^"]+)"', index) == ["a%20%26%20b.html", "first.html"]
    assert "<script" not in index
    assert html.escape(HOSTILE[:60]) in index


def test_the_command_writes_the_file_once(ctx, run, tmp_path, capsys):
    words = ["share", str(run.id), "--home", str(ctx.home), "--out", str(tmp_path / "new" / "page.html"), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == 1
    assert main(words) == 1
    assert "add --force" in capsys.readouterr().err
