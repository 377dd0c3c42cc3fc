"""Small files that unpack to very large contents are refused before they fill the memory, with advice."""

import gzip
import io
import json
import tracemalloc

import pyarrow as pa
import pytest
from pyarrow import parquet

from rlhf_lab.errors import DataError
from rlhf_lab.importers import readers
from rlhf_lab.importers.parsed_rows import Limits, RowError
from rlhf_lab.importers.parser import ImportRequest, parse_file

TEXT = "x" * 1_000
TEXTS = pa.DictionaryArray.from_arrays(pa.array([0] * 500, pa.int32()), [TEXT])
LIMITS = Limits(max_bytes=300_000)


def messages(count):
    """Rows of a list with one message each."""
    structs = pa.StructArray.from_arrays(
        [TEXTS.take(pa.array([0] * count)), pa.array(["user"] * count)], ["content", "role"]
    )
    return pa.ListArray.from_arrays(pa.array(range(count + 1), pa.int32()), structs)


def list_of_texts():
    return pa.ListArray.from_arrays(pa.array([0, 500], pa.int32()), TEXTS)


BOMBS = {
    "dictionary column": TEXTS,
    "repeated text": pa.array([TEXT] * 500),
    "repeated bytes": pa.array([TEXT.encode()] * 500),
    "dictionary in a list of structures": messages(500),
    "dictionary in a list": list_of_texts(),
    "dictionary in a large list": pa.LargeListArray.from_arrays(pa.array([0, 500], pa.int64()), TEXTS),
    "dictionary in a map": pa.MapArray.from_arrays(
        pa.array([0, 500], pa.int32()), pa.array(map(str, range(500))), TEXTS
    ),
    "list of numbers": pa.array([[0] * 100_000], pa.list_(pa.int8())),
    "one text": pa.array(["x" * 400_000]),
    "fixed length": pa.array([b"x" * 10_000] * 50, pa.binary(10_000)),
    "decimals": pa.array([[0] * 60_000], pa.list_(pa.decimal128(5))),
}


def parquet_bytes(column):
    count = len(column)
    buffer = io.BytesIO()
    table = pa.table({"prompt": ["p"] * count, "chosen": column, "rejected": ["b"] * count})
    parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


@pytest.mark.parametrize("column", BOMBS.values(), ids=BOMBS)
def test_parquet_counts_decoded_values(files, monkeypatch, column):
    path = files.raw("v.parquet", parquet_bytes(column))
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(readers, "PARQUET_BATCH_ROWS", 100)
    with pytest.raises(DataError, match=r"v.parquet unpacks to more than 300,000 bytes. Import it in parts"):
        list(readers.read_rows(path, LIMITS)[1])
    rows = list(readers.read_rows(path, Limits(max_bytes=2_000_000))[1])
    assert [row.cells["chosen"] for row in rows] == column.to_pylist()


def test_parquet_counts_each_value_once(files):
    """In batches, and in maps, whose parts are those of the whole column."""
    texts = [f"{index:0100}" for index in range(900)]
    columns = {
        "text": texts, "list": [[text] for text in texts], "struct": [{"a": text} for text in texts],
        "map": pa.array([[(text, text)] for text in texts], pa.map_(pa.string(), pa.string())),
        "none": pa.nulls(900, pa.string()), "empty": pa.array([[]] * 900, pa.list_(pa.string())),
    }  # fmt: skip
    parquet.write_table(pa.table(columns), files.folder / "v.parquet", row_group_size=300)
    assert len(list(readers.read_rows(files.folder / "v.parquet", Limits(max_bytes=5 * 900 * 100))[1])) == 900
    with pytest.raises(DataError, match="unpacks to more than 449,999 bytes"):
        list(readers.read_rows(files.folder / "v.parquet", Limits(max_bytes=5 * 900 * 100 - 1))[1])


def test_parquet_refuses_a_row_group_before_it_decodes_it(files, monkeypatch):
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("decoded"))
    for name in ("list of numbers", "one text", "fixed length", "decimals"):
        path = files.raw("v.parquet", parquet_bytes(BOMBS[name]))
        with pytest.raises(DataError, match="unpacks to more than"):
            list(readers.read_rows(path, LIMITS)[1])


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


def test_a_row_of_json_has_a_limit(files, monkeypatch):
    monkeypatch.setattr(readers, "MAX_ROW_CHARS", 100)
    good = {"prompt": "p", "chosen": "a", "rejected": "b"}
    path = files.rows("v.jsonl", [good, good | {"chosen": [[]] * 50}, good])
    first, long_row, last = readers.read_rows(path)[1]
    assert isinstance(long_row, RowError)
    assert "row 2 (line 2): the row has more than 100 characters" in str(long_row)
    assert first.cells == last.cells == good


@pytest.mark.parametrize("text", ['[{"a": [[], []]}]', '{"rows": [{"a": [[], []]}]}'])
def test_a_json_file_has_a_limit_of_objects_and_lists(files, monkeypatch, text):
    monkeypatch.setattr(readers, "MAX_JSON_CONTAINERS", text.count("[") + text.count("{"))
    assert next(readers.read_rows(files.raw("v.json", text))[1]).cells == {"a": [[], []]}
    monkeypatch.setattr(readers, "MAX_JSON_CONTAINERS", 4)
    with pytest.raises(DataError, match=r"holds more than 4 objects and lists. Import it in parts"):
        readers.read_rows(files.raw("v.json", text))


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
    assert '"c299999" is in an object twice' in decoder.repetition_error()


def test_a_line_of_csv_has_a_limit_of_cells(files, monkeypatch):
    monkeypatch.setattr(readers, "MAX_CELLS_OF_LINE", 5)
    good, error = readers.read_rows(files.raw("v.csv", "prompt,chosen,rejected\np,a,b\n" + "," * 6))[1]
    assert good.cells["chosen"] == "a"
    assert "row 2 (line 3): not CSV (a line has more than 5 cells)" in str(error)


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
