"""Imported votes of real people: the figures equal those of an independent computation."""

import csv
import json
import os
import shutil
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import pytest

from rlhf_lab.common.enums import Source
from rlhf_lab.importers.column_mapping import parse_map
from rlhf_lab.importers.parser import ImportRequest, parse_file
from rlhf_lab.importers.writer import ImportTarget, save_import
from rlhf_lab.quality.agreement import annotator_qualities, krippendorff_alpha, pairwise_agreement
from rlhf_lab.quality.queries import vote_columns
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database

REAL = os.environ.get("RLHF_LAB_REAL")
pytestmark = [pytest.mark.real, pytest.mark.skipif(not REAL, reason="RLHF_LAB_REAL is not set")]


@pytest.fixture
def db(tmp_path, empty_home):
    with Database.open(shutil.copytree(empty_home, tmp_path / "home")) as opened:
        yield opened


def import_votes(db, path, **options):
    project = projects.create_project(db, "real", "embedded", "", "own", 0, [("Once", "train")])
    save_import(db, parse_file(ImportRequest(str(path), **options)), ImportTarget(project.id, skip_broken=True))
    return vote_columns(db, project.id, Source.HUMAN)


def definition(units):
    """Krippendorff's alpha from the coincidences of every two values of a unit; and the agreement of every two."""
    same, coincidences, totals = [0, 0], defaultdict(float), defaultdict(float)
    for values in units:
        for a, b in combinations(values, 2):
            same[0] += a == b
            same[1] += 1
            for pair in ((a, b), (b, a)):
                coincidences[pair] += 1 / (len(values) - 1)
                totals[pair[0]] += 1 / (len(values) - 1)
    n = sum(totals.values())
    observed = sum(count for (a, b), count in coincidences.items() if a != b) / n
    expected = sum(totals[a] * totals[b] for a in totals for b in totals if a != b) / (n * (n - 1))
    return 1 - observed / expected, tuple(same)


def test_pandalm_three_annotators(db):
    path = Path(REAL) / "preferences" / "pandalm" / "testset-v1.json"
    votes = import_votes(db, path)
    rows = [row for row in json.loads(path.read_text(encoding="utf-8")) if isinstance(row["response1"], str)]
    rows = [row for row in rows if isinstance(row["response2"], str) and (row["instruction"] + row["input"]).strip()]
    units = [[row[f"annotator{i}"] for i in (1, 2, 3)] for row in rows]
    assert len(votes) == 3 * len(rows)
    expected, (same, compared) = definition(units)
    assert krippendorff_alpha(votes) == pytest.approx(expected, abs=1e-9)
    result = pairwise_agreement(votes)
    assert (result.agreed, result.compared) == (same, compared)
    assert [person.annotator for person in annotator_qualities(votes)] == ["annotator1", "annotator2", "annotator3"]


def test_llmfao_124_workers_with_ties(db, tmp_path):
    folder = Path(REAL) / "preferences" / "llmfao"
    texts = {}
    for line in (folder / "pairs-crowd.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        texts[str(row["id"])] = (row["text"], row["result_x"], row["result_y"])
    with (folder / "crowd-comparisons.csv").open(encoding="utf-8", newline="") as file:
        crowd = list(csv.DictReader(file))
    joined = tmp_path / "crowd.jsonl"  # not CSV: some models wrote nothing, and an empty answer is an error there
    columns = ("prompt", "result_x", "result_y", "worker", "winner", "pair_id")
    rows = ((*texts[row["id"]], row["worker"], row["winner"], row["id"]) for row in crowd)
    joined.write_text(
        "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows), encoding="utf-8"
    )
    votes = import_votes(
        db, joined, mapping=parse_map(["pair=pair_id"]), answers=frozenset({"chats=plain", "texts=plain"})
    )
    assert (len(votes), len(set(votes.annotator)), len(set(votes.pair))) == (
        8931,
        124,
        2139,
    )
    units = defaultdict(list)
    for row in crowd:
        units[row["id"]].append(row["winner"])
    expected, (same, compared) = definition(units.values())
    assert krippendorff_alpha(votes) == pytest.approx(expected, abs=1e-9)
    result = pairwise_agreement(votes)
    assert (result.agreed, result.compared) == (same, compared)
    ties = sum(person.ties.agreed for person in annotator_qualities(votes))
    assert ties == sum(row["winner"] == "tie" for row in crowd) == 3471
    # Half of the sides were known: a vote for left or right says where the texts stood.
    assert sum(person.left_preference.agreed for person in annotator_qualities(votes)) == sum(
        row["winner"] == "left" for row in crowd
    )
