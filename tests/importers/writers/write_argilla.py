"""Writes preferences as Argilla exports them: write_argilla.py FOLDER ROWS.json

The requests of its client are answered here, in the form of its server's API; all else is Argilla's own code. Rows have prompt,
better and worse.
"""

import json
import sys
import uuid
from pathlib import Path

import argilla as rg
import httpx

TEXTS = ("response_1", "response_2")
QUESTION_ID = uuid.UUID(int=9)


def uid(number):
    return str(uuid.UUID(int=number))


def record(number, row, kind):
    """As the server gives it. The better text is the second one in every other row."""
    better, worse = TEXTS[:: -1 if number % 2 else 1]
    prompt = [{"role": "user", "content": row["prompt"]}] if kind == "chat" else row["prompt"]
    ranks = [{"value": better, "rank": 1}, {"value": worse, "rank": 2}]
    values = {"preference": {"value": ranks if kind == "ranking" else better}}
    if kind == "chat":
        values |= {"quality": {"value": 2}, "why": {"value": row["worse"]}}
    suggestion = ranks[::-1] if kind == "ranking" else worse
    return {
        "id": uid(1000 + number), "external_id": str(number), "status": "completed", "metadata": {"source": "web"},
        "fields": {"prompt": prompt, better: row["better"], worse: row["worse"]},
        "responses": [{"id": uid(number), "values": values, "status": "submitted", "user_id": uid(1 + number % 2)}],
        "suggestions": [{"question_id": str(QUESTION_ID), "question_name": "preference", "value": suggestion, "score": 0.5,
                         "agent": "a model", "type": "model"}],
    }  # fmt: skip


def questions(kind):
    if kind == "ranking":
        return [rg.RankingQuestion("preference", values=list(TEXTS))]
    label = rg.LabelQuestion("preference", labels=[*TEXTS, "tie"])
    if kind == "label":
        return [label]
    return [label, rg.RatingQuestion("quality", values=[1, 2, 3]), rg.TextQuestion("why", required=False)]


def export(kind, rows, folder):
    records = [record(number, row, kind) for number, row in enumerate(rows)]

    def answer(request):
        if request.url.path.endswith("/me"):
            return httpx.Response(200, json={"id": uid(1), "username": "ann", "role": "owner", "first_name": "Ann"})
        if request.url.path.endswith("/records"):
            start, count = (int(request.url.params[name]) for name in ("offset", "limit"))
            return httpx.Response(200, json={"items": records[start : start + count]})
        return httpx.Response(200, json={})

    rg.Argilla(api_url="http://argilla.test", api_key="none", mounts={"all://": httpx.MockTransport(answer)})
    made = questions(kind)
    made[0].id = QUESTION_ID
    prompt = rg.ChatField("prompt") if kind == "chat" else rg.TextField("prompt")
    settings = rg.Settings(fields=[prompt, *map(rg.TextField, TEXTS)], questions=made)
    data = rg.Dataset("texts", settings=settings)
    data.id = uuid.UUID(int=7)
    data.records.to_json(folder / f"{kind}-to_json.json")
    for name, flatten in (("nested", False), ("flat", True)):
        for form, value in (
            ("list", data.records.to_list(flatten=flatten)),
            ("names", data.records.to_dict(flatten=flatten)),
            ("index", data.records.to_dict(flatten=flatten, orient="index")),
        ):
            (folder / f"{kind}-{form}-{name}.json").write_text(json.dumps(value))
    table = data.records.to_datasets()
    table.to_json(folder / f"{kind}-to_datasets.jsonl")
    table.to_csv(folder / f"{kind}-to_datasets.csv")
    table.to_parquet(folder / f"{kind}-to_datasets.parquet")


if __name__ == "__main__":
    for name in ("label", "ranking", "chat"):
        export(name, json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[1]))
