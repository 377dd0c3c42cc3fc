"""Writes preferences as Label Studio exports them, by its converter: write_label_studio.py FOLDER ROWS.json

Its label interface makes the results of the annotations. Rows have prompt, better and worse.
"""

import json
import sys
from pathlib import Path

from label_studio_sdk.converter import Converter
from label_studio_sdk.label_interface import LabelInterface

TEXTS = "".join(f'<Text name="{name}" value="${name}"/>' for name in ("prompt", "answer1", "answer2"))
CONFIGS = {
    "pairwise": f'<View>{TEXTS}<Pairwise name="best" toName="answer1,answer2"/><Rating name="quality" toName="prompt"/>'
    '<TextArea name="why" toName="prompt"/></View>',
    "choices": f'<View>{TEXTS}<Choices name="best" toName="prompt"><Choice value="answer1"/><Choice value="answer2"/>'
    "</Choices></View>",
    "ranker": '<View><Text name="prompt" value="$prompt"/><List name="answers" value="$items"/>'
    '<Ranker name="best" toName="answers"/></View>',
}
FORMATS = {"JSON": "json", "JSON_MIN": "json", "CSV": "csv", "TSV": "tsv"}


def task(number, row, kind):
    """The better text is the second one in every other row."""
    is_second = number % 2
    sides = [row["better"], row["worse"]][:: -1 if is_second else 1]
    data = {"prompt": row["prompt"]}
    if kind == "ranker":
        data["items"] = [{"id": f"id{i}", "title": f"Model {i}", "body": text} for i, text in enumerate(sides)]
        labels = {"best": {"ranker": {"best": ["id1", "id0"] if is_second else ["id0", "id1"]}}}
    else:
        data |= dict(zip(("answer1", "answer2"), sides, strict=True))
        names = ("left", "right") if kind == "pairwise" else ("answer1", "answer2")
        labels = {"best": {"label": names[is_second]}}
    if kind == "pairwise":
        labels |= {"quality": {"label": 4}, "why": {"label": row["worse"]}}
    interface = LabelInterface(CONFIGS[kind])
    regions = [interface.get_control(name).label(**label) for name, label in labels.items()]
    annotation = {
        "id": number, "completed_by": {"id": 7, "email": f"person{is_second}@lab.test"}, "was_cancelled": False,
        "result": [json.loads(json.dumps(region._dict())) for region in regions], "lead_time": 4.25,
        "created_at": "2026-01-31T12:00:00.000000Z", "updated_at": "2026-01-31T12:00:00.000000Z",
    }  # fmt: skip
    return {"id": number, "data": data, "annotations": [annotation], "predictions": []}


def export(kind, rows, folder):
    source = folder / "tasks"
    source.write_text(json.dumps([task(number, row, kind) for number, row in enumerate(rows)]))
    for form, suffix in FORMATS.items():
        out = folder / "out"
        Converter(CONFIGS[kind], str(folder)).convert(str(source), str(out), form, is_dir=False)
        (made,) = out.iterdir()
        made.rename(folder / f"{kind}-{form}.{suffix}")
        out.rmdir()
    source.unlink()


if __name__ == "__main__":
    for name in CONFIGS:
        export(name, json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[1]))
