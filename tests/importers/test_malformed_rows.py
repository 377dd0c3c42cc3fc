"""Broken, hostile and huge files: each message names the row and the remedy; nothing is imported."""

import gzip
import io
import json
import zipfile

import pytest

from rlhf_lab.errors import DataError
from rlhf_lab.importers.parsed_rows import Limits
from rlhf_lab.importers.parser import ImportRequest, parse_file
from rlhf_lab.importers.readers import read_rows
from rlhf_lab.importers.writer import ImportTarget, save_import
from rlhf_lab.store.projects import count_pairs
from rlhf_lab.store.votes import vote_counts

GOOD = {"prompt": "p", "chosen": "a", "rejected": "b"}
VOTE = {"prompt": "p", "first": "a", "second": "b", "winner": "left"}
GOODS = json.dumps(GOOD).encode() + b"\n"


def row(**change):
    """Two good rows and a third one that differs."""
    return GOODS * 2 + json.dumps(GOOD | change).encode()


def vote(**change):
    rows = [VOTE, VOTE, VOTE | change]
    return b"".join(json.dumps(item).encode() + b"\n" for item in rows)


def chats(**change):
    good = {"prompt": [{"role": "user", "content": "p"}], "chosen": [{"role": "assistant", "content": "a"}],
            "rejected": [{"role": "assistant", "content": "b"}]}  # fmt: skip
    return b"".join(json.dumps(item).encode() + b"\n" for item in (good, good, good | change))


def zipped():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        bundle.writestr("a.jsonl", GOODS)
    return buffer.getvalue()


def parquet(cut):
    import pyarrow
    from pyarrow import parquet as writer

    buffer = io.BytesIO()
    writer.write_table(pyarrow.Table.from_pylist([GOOD] * 50), buffer)
    return buffer.getvalue()[:cut]


CUT_GZ = gzip.compress(
    b"".join(json.dumps(GOOD | {"prompt": f"prompt {i * 7919}"}).encode() + b"\n" for i in range(4000))
)

#: name of the case -> (file name, its bytes, what the message names, the remedy in it)
BROKEN = {
    "half a line of JSON": ("a.jsonl", GOODS * 2 + b'{"prompt": "p", "cho', "row 3 (line 3)", "Correct the row"),
    "a list instead of an object": ("a.jsonl", GOODS + b'["p", "a", "b"]\n', "row 2", 'Write {"prompt"'),
    "nested without end": ("a.jsonl", GOODS + b"[" * 100_000, "row 2", "nested too deeply. Correct the row"),
    "a number of 5,000 digits": ("a.jsonl", GOODS + b'{"prompt": ' + b"9" * 5000 + b"}", "row 2", "too many digits. Correct"),
    "an array that breaks off": ("a.json", b"[" + GOODS + b"," + GOODS, "row 3", "Copy or download"),
    "a mistake inside an array": ("a.json", b"[" + GOODS + b",\n{'prompt': 1}]", "row 2 (line 3)", "Correct the row"),
    "not UTF-8": ("a.jsonl", GOODS + '{"prompt": "größe"}'.encode("latin-1"), "row 2", "Save the file as UTF-8"),
    "UTF-16": ("a.csv", "prompt,chosen,rejected\n".encode("utf-16"), "row 1", "Save it as UTF-8"),
    "nothing in it": ("a.jsonl", b" \n\n", "row 1", "Choose the file"),
    "a header alone": ("a.csv", b"prompt,chosen,rejected\n", "row 1", "Choose a file with rows"),
    "a comma too many": ("a.csv", b"prompt,chosen,rejected\np,a,b\np,a,b,c\n", "row 2 (line 3)", "in quotes"),
    "a quote that stays open": ("a.csv", b'prompt,chosen,rejected\np,a,b\np,"a,b\n', "row 2", "close every quote"),
    "two columns of one name": ("a.csv", b"prompt,chosen,chosen\np,a,b\n", "row 1", "Rename"),
    "no such columns": ("a.csv", b"x,y,z\n1,2,3\n", "Row 1", "--map chosen=COLUMN"),
    "unpaired": ("a.jsonl", b'{"prompt": "p", "completion": "a", "label": true}', "Row 1", "give pairs"),
    "no vote": ("a.jsonl", b'{"prompt": "p", "first": "a", "second": "b"}', "Row 1", "--map choice=COLUMN"),
    "zeros and ones": ("a.jsonl", vote().replace(b'"left"', b"1"), "row 1", "--choices"),
    "nothing chosen": ("a.jsonl", row(chosen=None), "row 3", "Write it"),
    "a number for a text": ("a.jsonl", row(chosen=3), "row 3", "in quotes"),
    "an empty prompt": ("a.jsonl", row(prompt=" "), "row 3", "Write it"),
    "half a character": ("a.jsonl", GOODS * 2 + b'{"prompt": "p", "chosen": "\\ud800", "rejected": "b"}', "row 3", "Replace it"),
    "a NUL": ("a.jsonl", row(rejected="a\0b"), "row 3", "Remove it"),
    "a text too long": ("a.jsonl", row(chosen="x" * 50_001), "row 3", "Shorten it"),
    "an unknown vote": ("a.jsonl", vote(winner="maybe"), "row 3", "--choices"),
    "a score that is not a number": ("a.jsonl", row(score_chosen=float("nan"), score_rejected=1), "row 3", "Correct the row"),
    "scores that contradict": ("a.jsonl", row(score_chosen=1, score_rejected=2), "row 3", "Swap them"),
    "an unknown role": ("a.jsonl", chats(prompt=[{"role": "bot", "content": "x"}]), "row 3", "roles are user"),
    "two answers at once": ("a.jsonl", chats(chosen=[{"role": "assistant", "content": "x"}] * 2), "row 3", "Correct the row"),
    "nothing shared": ("a.jsonl", b'{"chosen": "One two", "rejected": "Three"}', "shared beginning of chosen", "--map prompt="),
    "a time that is none": ("a.jsonl", row(created_at="yesterday"), "row 3", "like 2026-01-31"),
    "gzip that breaks off": ("a.jsonl.gz", CUT_GZ[: len(CUT_GZ) // 2], "row ", "Copy or download"),
    "gzip that is none": ("a.jsonl.gz", b"\x1f\x8bnothing", "row 1", "Copy or download"),
    "Parquet without its end": ("a.parquet", parquet(500), "row 1", "Copy or download"),
    "a picture": ("a.jsonl", b"\x89PNG\r\n\x1a\n\0\0\0", "holds no text", "Choose a CSV"),
    "Parquet by name alone": ("a.parquet", b"\x98\0\0", "is not a Parquet file", "Copy or download"),
    "a role that is a list": ("a.jsonl", chats(prompt=[{"role": ["user"], "content": "x"}]), "row 3", "roles are user"),
    "a score of 400 digits": ("a.jsonl", row(score_chosen=10**400, score_rejected=1), "row 3", "Correct the row"),
    "a zip": ("a.jsonl", zipped(), "zip archive", "Unpack it"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_errors_name_row_and_remedy_and_nothing_is_imported(case, db, project, tmp_path):
    name, content, place, remedy = BROKEN[case]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        save_import(db, parse_file(ImportRequest(str(path))), ImportTarget(project.id))
    assert place in str(caught.value)
    assert remedy in str(caught.value)
    assert count_pairs(db, project.id) == 0
    assert not any(sum(counts.values()) for counts in vote_counts(db, project.id).values())


def test_there_are_more_than_twenty_cases():
    assert len(BROKEN) > 20


def test_truncated_gzip_names_the_row(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(CUT_GZ[: len(CUT_GZ) // 2])
    parsed = parse_file(ImportRequest(str(path)))
    (problem,) = parsed.errors
    assert problem.location == f"row {len(parsed.votes) + 1}"
    assert 0 < len(parsed.votes) < 4000


def test_limits(tmp_path, files):
    bomb = gzip.compress(b"\n" * 30_000_000)
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(bomb)
    assert len(bomb) < 100_000
    with pytest.raises(DataError, match=r"unpacks to more than 20,000,000 bytes.*in parts"):
        parse_file(ImportRequest(str(path), limits=Limits(max_bytes=20_000_000)))
    with pytest.raises(DataError, match=r"has 120 bytes, more than 100\. Import it in parts"):
        files.read(files.raw("big.jsonl", b" " * 120), limits=Limits(max_bytes=100))
    parsed = files.parse("rows.jsonl", [GOOD] * 12, limits=Limits(max_rows=10))
    assert [str(problem) for problem in parsed.errors] == ["row 11: more than 10 rows. Import the file in parts."]


def test_missing_files_and_folders(tmp_path):
    for path in (tmp_path, tmp_path / "none.jsonl"):
        with pytest.raises(DataError, match="Check the name"):
            parse_file(ImportRequest(str(path)))


def test_many_errors_are_counted_and_the_first_twenty_listed(db, project, files):
    parsed = files.parse("bad.jsonl", [GOOD | {"chosen": None}] * 30 + [GOOD])
    with pytest.raises(DataError, match=r"30 rows of bad.jsonl cannot be used; nothing was imported") as caught:
        save_import(db, parsed, ImportTarget(project.id))
    assert str(caught.value).count("is missing") == 20
    assert str(caught.value).endswith("and 10 more")
    assert save_import(db, parsed, ImportTarget(project.id, skip_broken=True)).broken == 30
    assert count_pairs(db, project.id) == 1


def test_errors_in_a_long_json_array_name_the_line(tmp_path):
    """Lines are counted from row to row; counting from the start each time took 37 s for 40,000 rows."""
    file = tmp_path / "list.json"
    rows = [json.dumps({"prompt": "p", "chosen": "a", "rejected": "b"})] * 3
    file.write_text("[\n" + ",\n\n".join(rows) + "\n]")
    _, parsed = read_rows(file)
    assert [row.location for row in parsed] == ["row 1 (line 2)", "row 2 (line 4)", "row 3 (line 6)"]
