"""Every published format with hostile texts inside: read, exported in every form, opened by the card's own code, read again."""

import json
import subprocess
import sys

import pytest
from test_published_formats import CASES

from rlhf_lab.exporters.dataset_folder import export_dataset
from rlhf_lab.exporters.label_export import FORMATS, LAYOUTS, LabelExportOptions
from rlhf_lab.importers.cell_parsers import parse_choice_words
from rlhf_lab.importers.cells import read_cell
from rlhf_lab.importers.parser import ImportRequest, parse_file
from rlhf_lab.importers.writer import ImportTarget, save_import

#: What a text of the published cases becomes: syntax of every file format, and words that mean a missing value elsewhere.
HOSTILE = {
    "Name a fruit.": 'Name "a", b;\tc | fruit?\r\n\u2028\u202eשלום\u202c {"x": [1]} \\n',
    "A pear.": "null", "A brick.": "A 'brick'\n}\n {\u0085 =1+1, NaN", "A plum.": "👩\u200d👧 e\u0301 --- <b>plum</b>",
}  # fmt: skip
READ_ALL = """
import json, os, re, sys
for folder in sys.argv[1:]:
    os.chdir(folder)
    names = {}
    exec(re.search("```python\\n(.*?)```", open("README.md", encoding="utf-8").read(), re.DOTALL)[1], names)
    print(json.dumps([[row.get(name) for name in ("prompt", "chosen", "rejected")] for row in names["data"]]))
"""


def hostile(value):
    """A value of a case with hostile texts; texts that are JSON stay JSON."""
    if isinstance(value, list):
        return list(map(hostile, value))
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if value[:1] in ("[", "{"):
        return json.dumps(hostile(json.loads(value)))
    for plain, other in HOSTILE.items():
        value = value.replace(plain, other)
    return value


def preferences(votes):
    """(prompt, better, worse) of decided votes."""
    return [
        (vote.prompt, *(vote.first.text, vote.second.text)[:: 1 if vote.choice == "first" else -1])
        for vote in votes
        if vote.choice in ("first", "second")
    ]


@pytest.mark.slow
def test_published_formats_come_back_from_every_export(db, project, files, tmp_path):
    for number, (name, case) in enumerate(CASES.items()):
        if not case.votes or name == "TRL: implicit prompt":  # its prompt ends where the texts begin to differ
            continue
        choices = parse_choice_words(case.choices) if case.choices else {}
        path = files.rows(f"{number}{case.file_name[1:]}", hostile(case.rows))
        answers = frozenset(case.answers)
        parsed = files.read(path, mapping=case.mapping, choices=choices, answers=answers)
        assert len(parsed.votes) == len(case.votes), name
        for row, (prompt, better, worse) in zip(
            [row for row in case.votes if row[4] == "win"], preferences(parsed.votes), strict=True
        ):
            assert (better, worse) == (hostile(row[2]), hostile(row[3])), name
            assert isinstance(row[1], list) or prompt == hostile(row[1]), name
        save_import(db, parsed, ImportTarget(project.id, annotator=f"person {number}", skip_broken=True))
    assert len(preferences_of_every_export(db, project, tmp_path)) > 60


def preferences_of_every_export(db, project, tmp_path):
    """The preferences of a project, the same in every layout and format, read again and by the card's own code."""
    everything = LabelExportOptions(source=None, layout="explicit")
    expected = preferences(parse_file(own_folder(db, project, tmp_path / "all", everything)).votes)
    folders = {}
    for layout in LAYOUTS:
        for messages in (False, True):
            for format_ in FORMATS:
                options = LabelExportOptions(source=None, layout=layout, messages=messages, format=format_)
                request = own_folder(db, project, tmp_path / f"{layout}-{messages}-{format_}", options)
                folders[options] = request.path_or_hub_id
                parsed = parse_file(request)
                found = preferences(parsed.votes)
                if layout == "implicit" and not messages:  # where the shared beginning ends is not part of the file
                    assert all("share no beginning" in error.message for error in parsed.errors)
                    left_out = {error.row_number for error in parsed.errors}
                    rows = [row for number, row in enumerate(expected, 1) if number not in left_out]
                    joined = [tuple(prompt + text for text in texts) for prompt, *texts in found]
                    assert joined == [tuple(prompt + text for text in texts) for prompt, *texts in rows]
                    assert len(rows) > len(expected) / 2
                else:
                    assert (found, parsed.errors) == (expected, []), options
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READ_ALL, *folders.values()],
        capture_output=True, text=True, check=False, env={"HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    loaded = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    for options, rows in zip(folders, loaded, strict=True):
        if options.layout == "votes":  # with ties
            assert len(rows) >= len(expected)
        elif options.messages:
            chats = [[read_cell(cell).decoded for cell in row[1:]] for row in rows]  # in CSV they are JSON
            texts = [tuple(chat[-1]["content"] for chat in sides) for sides in chats]
            assert texts == [tuple(sides) for _, *sides in expected], options
        elif options.layout != "implicit":
            assert list(map(tuple, rows)) == expected, options
    return expected


def own_folder(db, project, out, options):
    folder = export_dataset(db, project.id, out, options)
    mapping = {"prompt": ""} if options.layout == "implicit" else {}
    return ImportRequest(str(folder), mapping=mapping, answers=frozenset({"texts=plain"}))


WRITE_CHATS = """
import json, sys
import datasets, pandas
folder, rows = sys.argv[1], json.loads(sys.argv[2])
data = datasets.Dataset.from_list(rows)
data.to_csv(f"{folder}/datasets.csv")
data.to_json(f"{folder}/datasets.jsonl")
data.to_parquet(f"{folder}/datasets.parquet")
frame = pandas.read_parquet(f"{folder}/datasets.parquet")  # its cells are arrays of numpy
frame.to_csv(f"{folder}/pandas.csv", index=False)
frame.to_csv(f"{folder}/pandas.tsv", index=False, sep="\\t")
frame.to_json(f"{folder}/pandas.jsonl", orient="records", lines=True)
frame.to_json(f"{folder}/pandas.json", orient="columns")
"""


@pytest.mark.slow
@pytest.mark.parametrize("has_prompt", [True, False])
def test_chats_that_datasets_and_pandas_write_are_read_in_every_format(files, has_prompt):
    rows, expected = [], []
    texts = list(HOSTILE.values())
    for better, worse in zip(texts, texts[1:] + texts[:1], strict=True):
        prompt = [{"role": "user", "content": text} for text in texts[:1]]
        chosen, rejected = ([*prompt, {"role": "assistant", "content": text}] for text in (better, worse))
        rows.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
        expected.append((texts[0], better, worse))
        if not has_prompt:
            del rows[-1]["prompt"]
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WRITE_CHATS, str(files.folder), json.dumps(rows)],
        check=True, capture_output=True, env={"HF_HUB_OFFLINE": "1", "HOME": str(files.folder)},
    )  # fmt: skip
    names = [path.name for path in sorted(files.folder.iterdir()) if path.is_file()]
    assert len(names) == 7
    for name in names:
        parsed = files.read(files.folder / name)
        assert parsed.errors == [], name
        assert preferences(parsed.votes) == expected, name
