"""Small files that unpack to very large contents are refused before they fill the memory, with advice."""

import gzip
import io
import json
import resource
import sys
import tracemalloc

import numpy
import pyarrow as pa
import pytest
from pyarrow import parquet

from rlhf_lab.errors import DataError
from rlhf_lab.importers import readers
from rlhf_lab.importers.parsed_rows import Limits
from rlhf_lab.importers.parser import ImportRequest, parse_file
from rlhf_lab.ui.shared.import_process import run_in_subprocess

TEXT = "x" * 1_000
MEGABYTES = 1_000_000
LIMITS = Limits(max_bytes=10 * MEGABYTES)  # and 200 MB of memory


def repeated(count, value):
    """A dictionary array: the value is stored once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([value]))


def list_of(column):
    return pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column)


def structures(count):
    parts = [repeated(count, "x" * 2_000), pa.array(["user"] * count)]
    return list_of(pa.StructArray.from_arrays(parts, ["content", "role"]))


#: Columns whose values take 600 MB or more, and whose files less than 1 MB.
BOMBS = {
    "texts": lambda: pa.array(["x" * 5_000] * 120_000),
    "bytes": lambda: pa.array([b"x" * 5_000] * 120_000),
    "dictionary": lambda: repeated(300_000, "x" * 2_000),
    "dictionary in a list": lambda: list_of(repeated(300_000, "x" * 2_000)),
    "dictionary in a list of structures": lambda: structures(300_000),
    "numbers in a list": lambda: list_of(pa.array(numpy.zeros(40_000_000, "int8"))),
    "one text": lambda: pa.array(["x" * 400_000_000]),
}


def parquet_bytes(column):
    count = len(column)
    buffer = io.BytesIO()
    table = pa.table({"prompt": pa.nulls(count, pa.string()), "chosen": column})
    parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def error_of_a_process(path, max_bytes):
    """The error of an import in a process of its own: the limit of this one would count what other tests left."""
    request = {"what": str(path), "bytes": max_bytes, "home": str(path.parent / "home"), "project": 1}
    try:
        return run_in_subprocess(request)["error"]
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("column", BOMBS.values(), ids=BOMBS)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_a_parquet_file_that_unpacks_to_more_than_the_memory_is_refused(files, column):
    path = files.raw("v.parquet", parquet_bytes(column()))
    assert path.stat().st_size < MEGABYTES
    message = f"v.parquet takes more than {20 * LIMITS.max_bytes:,} bytes of memory. Import it in parts."
    # Rarely, pyarrow crashes where an allocation fails; no Python code can prevent that.
    assert error_of_a_process(path, LIMITS.max_bytes).startswith((message, "The process that reads the file ended"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("v.jsonl", '{"a": [' + "[]," * 3_000_000 + "[]]}\n{}"),
        ("v.json.gz", '{"rows": [{"a": [' + "[]," * 3_000_000 + "[]]}]}"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_a_text_file_whose_values_take_more_than_the_memory_is_refused(files, name, text):
    error = error_of_a_process(files.raw(name, text), len(text))
    assert f"takes more than {20 * len(text):,} bytes of memory" in error


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_the_limit_of_memory_ends_with_the_import(files):
    before = resource.getrlimit(resource.RLIMIT_DATA)
    files.parse("v.jsonl", [{"prompt": "p", "chosen": "a", "rejected": "b"}])
    with pytest.raises(DataError):
        files.parse("w.jsonl", "{")
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_parquet_reads_no_more_rows_than_asked_for(files):
    path = files.raw("v.parquet", parquet_bytes(pa.nulls(5_000_000, pa.string())))
    assert next(readers.read_rows(path, Limits(max_bytes=1_000_000_000))[1]).cells["chosen"] is None


@pytest.mark.parametrize("name", ["v.json.gz", "v.jsonl.gz", "v.csv.gz", "v.txt.gz"])
def test_a_file_of_many_small_rows_takes_little_memory(tmp_path, name):
    """A million rows have 3 to 6 MB; Python's objects for all of them would take 60 MB or more."""

    unit, head = {"v.json.gz": (b"{},", b"["), "v.csv.gz": (b"a\n", b"prompt\n"), "v.txt.gz": (b"\n", b"a")}.get(
        name, (b"{}\n", b"")
    )
    path = tmp_path / name
    path.write_bytes(gzip.compress(head + unit * 1_000_000))
    tracemalloc.start()
    try:
        if name == "v.txt.gz":
            assert readers.read_lines(path) == ["a"]
        else:
            next(readers.read_rows(path)[1])
        assert tracemalloc.get_traced_memory()[1] < 25_000_000
    finally:
        tracemalloc.stop()


def wide_rows(name, count):
    names = [f"c{index}" for index in range(count)]
    if name.endswith("csv"):
        return ",".join(names) + "\n" + ",".join("x" * count)
    if name.endswith("tsv"):
        return "\t".join(names) + "\n" + "\t".join("x" * count)
    row = dict.fromkeys(names, "x")
    if name.endswith("jsonl"):
        return json.dumps(row)
    if name.endswith("json"):
        return json.dumps([row])
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist([row]), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["v.csv", "v.tsv", "v.jsonl", "v.json", "v.parquet"])
def test_a_file_has_at_most_a_thousand_columns(files, name):
    path = files.raw(name, wide_rows(name, 1_000))
    assert len(next(readers.read_rows(path)[1]).cells) == 1_000
    with pytest.raises(DataError, match=r"more than 1,000 different columns. Keep those with the texts") as caught:
        parse_file(ImportRequest(str(files.raw(name, wide_rows(name, 1_001)))))
    assert len(str(caught.value)) < 300


def test_columns_of_all_rows_are_counted(files):
    path = files.rows("v.jsonl", [{f"c{row}_{index}": "x" for index in range(300)} for row in range(5)])
    *rows, error = readers.read_rows(path)[1]
    assert len(rows) == 3
    assert str(error).startswith("row 4 (line 4): there are more than 1,000 different columns")


@pytest.mark.parametrize("name", ["v.csv", "v.jsonl"])
def test_a_text_is_no_name_of_a_column(files, name):
    """A CSV file without a header; its texts would fill the reply."""
    content = f"{TEXT},b\nc,d" if name == "v.csv" else json.dumps({TEXT: 1})
    with pytest.raises(
        DataError, match=r"name has 1,000 characters .* Write the names of the columns in row 1"
    ) as caught:
        parse_file(ImportRequest(str(files.raw(name, content))))
    assert len(str(caught.value)) < 300


def test_names_are_compared_in_linear_time():
    """Pairwise, 300,000 names would take minutes."""
    names = [f"c{index}" for index in range(300_000)]
    assert "more than 1,000 different columns" in readers._check_columns(names)
    decoder = readers.UniqueNameDecoder()
    decoder.decode("{" + ",".join(f'"{name}":1' for name in [*names, names[-1]]) + "}")
    assert '"c299999" occurs twice in an object' in decoder.repetition_error()


ANSWERS = [{"response": f"Answer {number}.", "score": number} for number in range(17)]


def test_comparisons_of_a_file_are_limited(files):
    """Ten rows with three comparisons each."""
    path = files.rows("v.jsonl", [{"prompt": f"Question {row}?", "completions": ANSWERS[:3]} for row in range(10)])
    parsed = parse_file(ImportRequest(str(path), limits=Limits(max_rows=10)))
    assert (len(parsed.votes), parsed.row_count) == (10, 10)
    assert [str(error) for error in parsed.errors] == ["row 4: more than 10 comparisons. Import the file in parts."]


def test_answers_to_one_prompt_are_limited(files):
    rows = [{"prompt": "Why?", "completions": ANSWERS}, {"prompt": "Who?", "completions": ANSWERS[:16]}]
    parsed = files.parse("v.jsonl", rows)
    assert len(parsed.votes) == 120
    assert "row 1 (line 1): there are 17 answers to one prompt, more than 16" in str(parsed.errors[0])
    rated = [{"prompt": "Why?", "response": f"Answer {number}.", "helpfulness": number} for number in range(18)]
    parsed = files.parse("w.jsonl", rated)
    assert len(parsed.votes) == 120
    assert [error.row_number for error in parsed.errors] == [17, 18]


def reply(key, parent, rank):
    return {"message_id": key, "parent_id": parent, "role": "assistant", "text": key, "rank": rank}


def test_messages_that_answer_each_other_in_a_circle_are_an_error(files):
    rows = [reply("a", "b", 0), reply("b", "a", 0), reply("c", "a", 1)]
    with pytest.raises(DataError, match="the message has more than 200 turns before it"):
        files.parse("v.jsonl", rows)


def test_the_turns_of_a_tree_are_limited(files):
    node = {"role": "prompter", "text": "x"}
    for _ in range(200):
        node = {"role": "prompter", "text": "x", "replies": [node]}
    with pytest.raises(DataError, match="the tree has more than 200 turns"):
        files.parse("v.jsonl", [{"prompt": node}])


@pytest.mark.parametrize("answers", [None, [], ANSWERS[:1]])
def test_a_row_without_two_answers_is_an_error(files, answers):
    good = {"prompt": "Why?", "completions": ANSWERS[:2]}
    parsed = files.parse("v.jsonl", [good, good | {"completions": answers}])
    assert [str(error).partition(". ")[0] for error in parsed.errors] == [
        "row 2 (line 2): completions has fewer than two answers"
    ]


@pytest.mark.parametrize("answers", [3, [*ANSWERS[:2], 3]])
def test_a_column_that_holds_something_else_in_one_row_is_no_list_of_answers(files, answers):
    good = {"prompt": "Why?", "completions": ANSWERS[:2]}
    with pytest.raises(DataError, match="no pair of texts that the lab knows by name"):
        files.parse("v.jsonl", [good, good | {"completions": answers}])
