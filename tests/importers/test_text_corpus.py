"""Texts of one column, for PPO-ptx."""

import gzip

import pytest

from rlhf_lab.errors import DataError
from rlhf_lab.importers import text_corpus as module
from rlhf_lab.importers.text_corpus import load_texts

ROWS = [{"story": " Once. ", "n": 1}, {"story": "", "n": 2}, {"story": "Then\nmore", "n": 3}]


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet", "t.csv"])
def test_a_column_of_any_file_format(files, name):
    path = files.rows(name, ROWS)
    assert load_texts(f"{path}:story") == (["Once.", "Then\nmore"], f"{name}:story")


def test_the_column_is_optional_if_unambiguous(files):
    assert load_texts(str(files.rows("a.jsonl", [{"text": "a", "n": 1}]))) == (["a"], "a.jsonl:text")
    assert load_texts(str(files.rows("b.jsonl", [{"story": "b"}]))) == (["b"], "b.jsonl:story")


def test_one_text_per_line(tmp_path):
    path = tmp_path / "tales: mine.txt"
    path.write_text("\ufeffone\n\n  two \n")  # with the byte order mark of some editors
    assert load_texts(str(path)) == (["one", "two"], "tales: mine.txt")


@pytest.mark.parametrize("name", ["TALES.TXT", "tales.txt.gz"])
def test_text_files_with_upper_case_suffix_or_gzip(tmp_path, name):
    content = b"one\n{two\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert load_texts(str(tmp_path / name)) == (["one", "{two"], name)


def test_a_truncated_text_file_is_refused(tmp_path):
    whole = gzip.compress(b"".join(b"%d one\n" % (i * i) for i in range(5000)))
    (tmp_path / "a.txt.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"a\.txt\.gz: the gzip stream is damaged here.*Copy or download"):
        load_texts(str(tmp_path / "a.txt.gz"))
    (tmp_path / "b.txt").write_bytes(b"one\n\xe9t\xe9\n")
    with pytest.raises(DataError, match=r"b\.txt: byte 0xe9 in line 2 is not UTF-8"):
        load_texts(str(tmp_path / "b.txt"))


def test_only_the_first_texts_are_read(files, monkeypatch):
    monkeypatch.setattr(module, "MAX_TEXTS", 2)
    assert load_texts(str(files.rows("a.jsonl", [{"text": word} for word in "abc"]))).texts == ["a", "b"]


def test_a_data_set_on_the_hub(monkeypatch):
    requests = []

    def load_dataset(name, config, *, split, streaming):
        requests.append((name, split, streaming))
        return iter([{"body": f"text {i}"} for i in range(5)])

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr(module, "MAX_TEXTS", 3)
    assert load_texts("someone/stories:body") == (["text 0", "text 1", "text 2"], "stories:body")
    assert requests == [("someone/stories", "train", True)]


@pytest.mark.parametrize(
    ("content", "ask", "words"),
    [
        ('{"story": "a", "n": 1}', ":txt", r'row 1.*no text in a column "txt".*story, n.*FILE:COLUMN'),
        ('{"story": "a", "n": 1}', "", r'no text in a column "text"'),
        ('{"story": "a", "n": 1}', ":n", r'no text in a column "n"'),
        ('{"story": "a"}\n{"story": ', "", r"row 2 \(line 2\): not JSON.*Correct"),
        ('{"story": " "}', ":story", r"holds no text"),
    ],
)
def test_unreadable_texts_are_reported(tmp_path, content, ask, words):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=f"(?s){words}"):
        load_texts(f"{path}{ask}")


def test_missing_files(tmp_path):
    for name in ("none.jsonl", "none.txt", "none.jsonl:text"):
        with pytest.raises(DataError, match="none"):
            load_texts(str(tmp_path / name))
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    with pytest.raises(DataError, match="holds no text"):
        load_texts(str(empty))
