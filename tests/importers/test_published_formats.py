"""Files in the formats of published data sets and annotation tools, with the expected votes written by hand.

Our own short texts; the names of the columns and the values of votes are those of the formats. docs/FORMATS.md is the same table.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlhf_lab.common.chat_format import chat_of_prompt
from rlhf_lab.errors import DataError
from rlhf_lab.importers.cell_parsers import parse_choice_words
from rlhf_lab.importers.column_mapping import ColumnMappingError

FRUIT, PEAR, BRICK, PLUM = "Name a fruit.", "A pear.", "A brick.", "A plum."


def chat(*texts, system=""):
    """Messages of user and assistant in turn."""
    turns = [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 9, texts, strict=False)]
    return ([{"role": "system", "content": system}] if system else []) + turns


def answer(text):
    return [{"role": "assistant", "content": text}]


def sharegpt(*texts):
    return [{"from": name, "value": text} for name, text in zip(("human", "gpt") * 9, texts, strict=False)]


TALK = (FRUIT, PEAR, "Another?")


@dataclass
class Case:
    """A file and its votes: (row, prompt or its messages, better text, worse text, win/tie/both_bad/skip, annotator, strength).

    question: pattern of the question that the importer asks; mapping, choices, answers: the answer to it.
    """

    rows: Any
    votes: list[tuple[Any, ...]]
    question: str = ""
    mapping: dict[str, str] = field(default_factory=dict)
    choices: str = ""
    answers: tuple[str, ...] = ()
    file_name: str = "v.jsonl"
    errors: dict[int, str] = field(default_factory=dict)


WIN = [(1, FRUIT, PEAR, BRICK, "win")]
TALK_WIN = [(1, chat(*TALK), PLUM, BRICK, "win")]

TRL = {
    "TRL: explicit prompt": Case([{"prompt": "The sky is", "chosen": " blue.", "rejected": " green."}],
                                 [(1, "The sky is", " blue.", " green.", "win")]),
    "TRL: implicit prompt": Case([{"chosen": "The sky is blue.", "rejected": "The sky is green."}],
                                 [(1, "The sky is", " blue.", " green.", "win")],
                                 question="shared beginning.*--map prompt=", mapping={"prompt": ""}),
    "TRL: conversational, explicit prompt": Case(
        [{"prompt": chat(*TALK), "chosen": answer(PLUM), "rejected": answer(BRICK)}], TALK_WIN),
    "TRL: conversational, implicit prompt": Case(
        [{"chosen": chat(*TALK, PLUM), "rejected": chat(*TALK, BRICK)}], TALK_WIN),
    "TRL: messages with parts": Case(
        [{"prompt": [{"role": "user", "content": [{"type": "text", "text": FRUIT}]}],
          "chosen": [{"role": "assistant", "content": [{"type": "text", "text": PEAR}]}],
          "rejected": [{"role": "assistant", "content": [{"type": "text", "text": BRICK}]}]}], WIN),
    "TRL: unpaired": Case([{"prompt": FRUIT, "completion": PEAR, "label": True}], [], question="unpaired preferences"),
}  # fmt: skip

LLAMA_FACTORY = {
    "LLaMA-Factory: alpaca": Case(
        [{"instruction": FRUIT, "input": "", "chosen": PEAR, "rejected": BRICK},
         {"instruction": FRUIT, "input": "A red one.", "chosen": "A cherry.", "rejected": PEAR}],
        [*WIN, (2, f"{FRUIT}\n\nA red one.", "A cherry.", PEAR, "win")], file_name="v.json"),
    "LLaMA-Factory: alpaca with system and history": Case(
        [{"instruction": "Another?", "input": "", "system": "Be brief.", "history": [[FRUIT, PEAR]], "chosen": PLUM,
          "rejected": BRICK}],
        [(1, chat(*TALK, system="Be brief."), PLUM, BRICK, "win")], file_name="v.json"),
    "LLaMA-Factory: sharegpt": Case(
        [{"conversations": sharegpt(*TALK), "chosen": {"from": "gpt", "value": PLUM},
          "rejected": {"from": "gpt", "value": BRICK}}], TALK_WIN, file_name="v.json"),
    "LLaMA-Factory: sharegpt with system": Case(
        [{"conversations": sharegpt(FRUIT), "chosen": {"from": "gpt", "value": PEAR},
          "rejected": {"from": "gpt", "value": BRICK}, "system": "Be brief.", "tools": ""}],
        [(1, chat(FRUIT, system="Be brief."), PEAR, BRICK, "win")], file_name="v.json"),
}  # fmt: skip

AXOLOTL = {
    "axolotl: chat_template.default": Case(
        [{"messages": chat(FRUIT, PEAR, "Another?", system="Be brief."), "chosen": answer(PLUM)[0],
          "rejected": answer(BRICK)[0]}], [(1, chat(*TALK, system="Be brief."), PLUM, BRICK, "win")]),
    "axolotl: chat_template.argilla_chat": Case([{"chosen": chat(FRUIT, PEAR), "rejected": chat(FRUIT, BRICK)}], WIN),
    "axolotl: chatml.argilla": Case(
        [{"system": "", "instruction": FRUIT, "chosen_response": PEAR, "rejected_response": BRICK}], WIN),
    "axolotl: chatml.intel": Case(
        [{"system": "Be brief.", "question": FRUIT, "chosen": PEAR, "rejected": BRICK}],
        [(1, chat(FRUIT, system="Be brief."), PEAR, BRICK, "win")]),
    "axolotl: chatml.icr": Case([{"system": "Be brief.", "input": FRUIT, "chosen": PEAR, "rejected": BRICK}],
                                [(1, chat(FRUIT, system="Be brief."), PEAR, BRICK, "win")]),
    "axolotl: chatml.ultra": Case([{"prompt": FRUIT, "chosen": chat(FRUIT, PEAR), "rejected": chat(FRUIT, BRICK)}], WIN),
    "axolotl: zephyr.nectar": Case(
        [{"prompt": FRUIT, "answers": [{"answer": BRICK, "rank": 3.0}, {"answer": PEAR, "rank": 1.0},
                                        {"answer": PLUM, "rank": 1.0}], "turns": 1}],
        [(1, FRUIT, PEAR, BRICK, "win"), (1, FRUIT, PLUM, BRICK, "win"), (1, FRUIT, PEAR, PLUM, "tie")]),
}  # fmt: skip


def responses(*values):
    return [{"user_id": f"u{i}", "value": value, "status": status} for i, (value, status) in enumerate(values)]


ARGILLA_FIELDS = {"prompt": FRUIT, "response_1": PEAR, "response_2": BRICK}
ARGILLA_VOTES = [
    (1, FRUIT, PEAR, BRICK, "win", "u0"),
    (1, FRUIT, BRICK, PEAR, "win", "u1"),
    (1, FRUIT, PEAR, BRICK, "tie", "u2"),
]
ARGILLA = {
    "Argilla 2: flattened": Case(
        [{"id": "7", "status": "completed", "_server_id": "s", **ARGILLA_FIELDS, "preference.suggestion": "response_2",
          "preference.suggestion.score": None, "preference.suggestion.agent": "a model",
          "preference.responses": ["response_1", "response_2", "tie", "response_2"],
          "preference.responses.users": ["u0", "u1", "u2", "u3"],
          "preference.responses.status": ["submitted", "submitted", "submitted", "draft"]}], ARGILLA_VOTES),
    "Argilla 2: nested": Case(
        [{"id": "7", "fields": ARGILLA_FIELDS, "metadata": {}, "vectors": {}, "_server_id": "s",
          "suggestions": {"preference": {"value": "response_2", "score": None, "agent": "a model"}},
          "responses": {"preference": [{"value": "response_1", "user_id": "u0"}, {"value": "response_2", "user_id": "u1"},
                                       {"value": "tie", "user_id": "u2"}]}}], ARGILLA_VOTES, file_name="v.json"),
    "Argilla 1: feedback data set": Case(
        [{**ARGILLA_FIELDS, "preference": responses(("response_1", "submitted"), ("response_2", "submitted"),
                                                    ("tie", "submitted"), ("response_1", "discarded")),
          "preference-suggestion": "response_2", "external_id": None, "metadata": "{}"}], ARGILLA_VOTES),
    "Argilla: two questions": Case(
        [{**ARGILLA_FIELDS, "better": responses(("response_1", "submitted")), "topic": responses(("food", "submitted"))}],
        ARGILLA_VOTES[:1], question="better, topic.*--map choice=better", mapping={"choice": "better"}),
    "Argilla: ranking": Case(
        [{"prompt": FRUIT, "response-1": BRICK, "response-2": PEAR, "response-3": PLUM,
          "ranking": responses(([{"value": "response-2", "rank": 1}, {"value": "response-3", "rank": 1},
                                 {"value": "response-1", "rank": 2}], "submitted"))}],
        [(1, FRUIT, PEAR, PLUM, "tie", "u0"), (1, FRUIT, PEAR, BRICK, "win", "u0"), (1, FRUIT, PLUM, BRICK, "win", "u0")]),
    "Argilla 2: ranking": Case(
        [{"prompt": FRUIT, "response-1": BRICK, "response-2": PEAR, "response-3": PLUM,
          "ranking.responses": [["response-2", "response-3", "response-1"], ["response-1", "response-3", "response-2"]],
          "ranking.responses.users": ["u0", "u1"], "ranking.responses.status": ["submitted", "draft"],
          "ranking.suggestion": ["response-1", "response-2", "response-3"]}],
        [(1, FRUIT, PEAR, PLUM, "win", "u0"), (1, FRUIT, PEAR, BRICK, "win", "u0"), (1, FRUIT, PLUM, BRICK, "win", "u0")]),
    "Argilla: ratings of distilabel": Case(
        [{"instruction": FRUIT, "generations": [BRICK, PEAR], "ratings": [1, 4], "rationales": ["No.", "Yes."]},
         {"instruction": FRUIT, "generations": [PLUM, PEAR], "ratings": [4, 4], "rationales": ["Yes.", "Yes."]}],
        [(1, FRUIT, PEAR, BRICK, "win"), (2, FRUIT, PLUM, PEAR, "tie")]),
    "Argilla: binarized UltraFeedback": Case(
        [{"source": "web", "prompt": FRUIT, "chosen": chat(FRUIT, PEAR), "chosen-rating": 4.5, "chosen-model": "x",
          "rejected": chat(FRUIT, BRICK), "rejected-rating": 2.0, "rejected-model": "y"},
         {"source": "web", "prompt": FRUIT, "chosen": chat(FRUIT, PEAR), "chosen-rating": 4.0, "chosen-model": "x",
          "rejected": chat(FRUIT, PLUM), "rejected-rating": 4.0, "rejected-model": "y"}],
        [*WIN, (2, FRUIT, PEAR, PLUM, "tie")]),
    "Argilla: a status beside chosen and rejected": Case(
        [{"input": FRUIT, "chosen": PEAR, "rejected": BRICK, "status": "unchanged"},
         {"input": FRUIT, "chosen": PEAR, "rejected": PLUM, "status": "tie"}],
        [*WIN, (2, FRUIT, PEAR, PLUM, "tie")], question="status.*tie.*--map choice=status", mapping={"choice": "status"},
        choices="unchanged=first,tie=tie"),
}  # fmt: skip


def label_studio_annotation(person, result, cancelled=False):
    return {"id": 3, "completed_by": person, "result": result, "was_cancelled": cancelled, "lead_time": 4.2,
            "created_at": "2026-01-31T12:00:00Z"}  # fmt: skip


def pairwise(side):
    return [
        {"value": {"selected": side}, "id": "r", "from_name": "pw", "to_name": "answer1,answer2", "type": "pairwise"}
    ]


RANKED_ITEMS = [{"id": "x", "title": "1", "body": BRICK}, {"id": "y", "body": PEAR}, {"id": "z", "title": PLUM}]
LABEL_STUDIO = {
    "Label Studio: JSON": Case(
        [{"id": 1, "data": {"prompt": FRUIT, "answer1": PEAR, "answer2": BRICK}, "predictions": [], "annotations": [
            label_studio_annotation(1, pairwise("left")),
            label_studio_annotation({"id": 2, "email": "bo@lab.test"}, pairwise("right")),
            label_studio_annotation(3, [], cancelled=True)]},
         {"id": 2, "data": {"prompt": FRUIT, "answer1": PLUM, "answer2": BRICK}, "predictions": [], "annotations": []}],
        [(1, FRUIT, PEAR, BRICK, "win", "1"), (1, FRUIT, BRICK, PEAR, "win", "bo@lab.test"),
         (1, FRUIT, PEAR, BRICK, "skip", "3")],
        file_name="v.json", errors={2: "annotations is empty"}),
    "Label Studio: JSON, a choice of words": Case(
        [{"id": 1, "data": {"prompt": FRUIT, "answer1": PEAR, "answer2": BRICK}, "annotations": [label_studio_annotation(1, [
            {"value": {"choices": ["Answer 1"]}, "from_name": "best", "to_name": "prompt", "type": "choices"}])]}],
        [(1, FRUIT, PEAR, BRICK, "win", "1")], file_name="v.json"),
    "Label Studio: JSON-MIN": Case(
        [{"id": 1, "prompt": FRUIT, "answer1": PEAR, "answer2": BRICK, "pw": [{"selected": "right"}], "annotator": 2,
          "annotation_id": 3, "created_at": "2026-01-31T12:00:00Z", "lead_time": 4.2}],
        [(1, FRUIT, BRICK, PEAR, "win", "2")], file_name="v.json"),
    "Label Studio: CSV": Case(
        [{"annotation_id": 3, "annotator": 2, "answer1": PEAR, "answer2": BRICK, "id": 1, "lead_time": 4.2, "prompt": FRUIT,
          "pw": pw} for pw in ('{"selected": "left"}', '[{"selected":"right"}]')],
        [(1, FRUIT, PEAR, BRICK, "win", "2"), (2, FRUIT, BRICK, PEAR, "win", "2")], file_name="v.csv"),
    "Label Studio: JSON, a ranking": Case(
        [{"id": 1, "data": {"prompt": FRUIT, "items": RANKED_ITEMS}, "annotations": [
            label_studio_annotation(1, [{"value": {"ranker": {"rank": ["z", "y", "x"]}}, "from_name": "rank", "type": "ranker"}]),
            label_studio_annotation(2, [], cancelled=True)]},
         {"id": 2, "data": {"prompt": FRUIT, "items": RANKED_ITEMS}, "annotations": [
            label_studio_annotation(1, [{"value": {"ranker": {"_": ["x"], "good": ["z", "y"]}}, "type": "ranker"}])]},
         {"id": 3, "data": {"prompt": FRUIT, "items": RANKED_ITEMS[:1]}, "annotations": [
            label_studio_annotation(1, [{"value": {"ranker": {"rank": ["x", "q"]}}, "type": "ranker"}])]}],
        [(1, FRUIT, PLUM, PEAR, "win", "1"), (1, FRUIT, PLUM, BRICK, "win", "1"), (1, FRUIT, PEAR, BRICK, "win", "1")],
        file_name="v.json", errors={2: "ranking sorts texts into 2 groups", 3: "ranking ranks 'x, q', and no list"}),
    "Label Studio: CSV, a ranking": Case(
        [{"annotation_id": 3, "annotator": "bo@lab.test", "id": 1, "items": json.dumps(RANKED_ITEMS), "prompt": FRUIT,
          "rank": '[{"ranker":{"rank":["z","x"]}}]'}],
        [(1, FRUIT, PLUM, BRICK, "win", "bo@lab.test")], file_name="v.csv"),
}  # fmt: skip

ARENA_COLUMNS = {"question_id": "q1", "model_a": "x", "model_b": "y", "judge": "arena_user_5", "turn": 1, "anony": True,
                 "language": "English", "tstamp": 1684000000.5}  # fmt: skip
ARENA = {
    "Chatbot Arena": Case(
        [ARENA_COLUMNS | {"winner": winner, "conversation_a": chat(FRUIT, PEAR), "conversation_b": chat(FRUIT, BRICK)}
         for winner in ("model_a", "model_b", "tie", "tie (bothbad)")],
        [(1, FRUIT, PEAR, BRICK, "win", "arena_user_5"), (2, FRUIT, BRICK, PEAR, "win", "arena_user_5"),
         (3, FRUIT, PEAR, BRICK, "tie", "arena_user_5"), (4, FRUIT, PEAR, BRICK, "both_bad", "arena_user_5")]),
    "Chatbot Arena: two turns": Case(
        [ARENA_COLUMNS | {"turn": 2, "winner": "model_b", "conversation_a": chat(FRUIT, PEAR, "Another?", BRICK),
                          "conversation_b": chat(FRUIT, PLUM, "Another?", PEAR)}],
        [(1, FRUIT, f"{PLUM}\n\nHuman: Another?\n\nAssistant: {PEAR}", f"{PEAR}\n\nHuman: Another?\n\nAssistant: {BRICK}", "win",
          "arena_user_5")]),
    "Chatbot Arena: columns of winners, lists of turns": Case(
        [{"id": 5, "model_a": "x", "model_b": "y", "prompt": json.dumps([FRUIT]), "response_a": json.dumps([PEAR]),
          "response_b": json.dumps([BRICK]), "winner_model_a": 1, "winner_model_b": 0, "winner_tie": 0},
         {"id": 6, "model_a": "x", "model_b": "y", "prompt": json.dumps([FRUIT]), "response_a": json.dumps([PEAR]),
          "response_b": json.dumps([PLUM]), "winner_model_a": 0, "winner_model_b": 0, "winner_tie": 1},
         {"id": 7, "model_a": "x", "model_b": "y", "prompt": json.dumps([FRUIT, "Another?"]),
          "response_a": json.dumps([PEAR, BRICK]), "response_b": json.dumps([PEAR, PLUM]), "winner_model_a": 0,
          "winner_model_b": 1, "winner_tie": 0},
         {"id": 8, "model_a": "x", "model_b": "y", "prompt": json.dumps([FRUIT]), "response_a": json.dumps([PEAR]),
          "response_b": json.dumps([BRICK]), "winner_model_a": 1, "winner_model_b": 0, "winner_tie": 1}],
        [(1, FRUIT, PEAR, BRICK, "win"), (2, FRUIT, PEAR, PLUM, "tie"), (3, chat(*TALK), PLUM, BRICK, "win")],
        file_name="v.csv", errors={4: "winner_tie is '1', but the vote is 'first'"}),
    "MT-bench": Case(
        [{"question_id": 81, "model_a": "x", "model_b": "y", "winner": "model_b", "judge": "expert_0", "turn": turn,
          "conversation_a": chat(FRUIT, PEAR, "Another?", BRICK), "conversation_b": chat(FRUIT, PLUM, "Another?", PEAR)}
         for turn in (1, 2)],
        [(1, FRUIT, PLUM, PEAR, "win", "expert_0"),
         (2, FRUIT, f"{PLUM}\n\nHuman: Another?\n\nAssistant: {PEAR}", f"{PEAR}\n\nHuman: Another?\n\nAssistant: {BRICK}", "win",
          "expert_0")]),
}  # fmt: skip


def ultrafeedback(**scores):
    texts = {"BRICK": BRICK, "PEAR": PEAR, "PLUM": PLUM}
    completions = [
        {"model": name, "principle": "honesty", "custom_system_prompt": "Be kind.", "response": texts[name], "critique": "Good.",
         "annotations": {"honesty": {"Rating": "5", "Rationale": "Yes."}}, "fine-grained_score": fine, "overall_score": overall}
        for name, (overall, fine) in scores.items()
    ]  # fmt: skip
    return {"source": "web", "instruction": FRUIT, "models": list(scores), "completions": completions,
            "correct_answers": ["None"], "incorrect_answers": ["None"]}  # fmt: skip


ULTRA_ROWS = [ultrafeedback(BRICK=(2.0, 4.0), PEAR=(8.0, 3.5), PLUM=(8.0, 3.0))]
FEEDBACK = {
    "UltraFeedback: overall": Case(
        ULTRA_ROWS, [(1, FRUIT, PEAR, BRICK, "win"), (1, FRUIT, PLUM, BRICK, "win"), (1, FRUIT, PEAR, PLUM, "tie")],
        question="overall_score_a.*fine-grained_score_a.*--map score_first=overall_score_a",
        mapping={"score_first": "overall_score_a"}),
    "UltraFeedback: fine-grained": Case(
        ULTRA_ROWS, [(1, FRUIT, BRICK, PEAR, "win"), (1, FRUIT, BRICK, PLUM, "win"), (1, FRUIT, PEAR, PLUM, "win")],
        question="score_first=fine-grained_score_a", mapping={"score_first": "fine-grained_score_a"}),
    "UltraFeedback: binarized": Case(
        [{"prompt": FRUIT, "prompt_id": "p", "chosen": chat(FRUIT, PEAR), "rejected": chat(FRUIT, BRICK),
          "messages": chat(FRUIT, PEAR), "score_chosen": 8.5, "score_rejected": 3.0},
         {"prompt": FRUIT, "prompt_id": "p", "chosen": chat(FRUIT, PEAR), "rejected": chat(FRUIT, PLUM),
          "messages": chat(FRUIT, PEAR), "score_chosen": 8.0, "score_rejected": 8.0}],
        [*WIN, (2, FRUIT, PEAR, PLUM, "tie")]),
    "HelpSteer2: ratings": Case(
        [{"prompt": prompt, "response": text, "helpfulness": score, "correctness": 4, "coherence": 4, "complexity": 1,
          "verbosity": 4 - score}
         for prompt, text, score in (("Why?", BRICK, 1), (FRUIT, BRICK, 0), (FRUIT, PEAR, 4), ("Why?", PLUM, 1),
                                     ("Who?", PEAR, 2))],
        [(3, FRUIT, PEAR, BRICK, "win"), (4, "Why?", BRICK, PLUM, "tie")], errors={5: "no other row has this prompt"}),
    "HelpSteer2: preferences": Case(
        [{"split": split, "prompt": FRUIT, "response_1": PEAR, "response_2": BRICK, "preference_strength": n,
          "preference_statement": "x", "preference_elaboration": "y"}
         for n, split in ((-3, "train"), (-2, "val"), (-1, "train"), (0, "train"), (1, "train"), (3, "val"))],
        [(1, FRUIT, PEAR, BRICK, "win", "", "much"), (2, FRUIT, PEAR, BRICK, "win", "", "clearly"),
         (3, FRUIT, PEAR, BRICK, "win", "", "slightly"), (4, FRUIT, PEAR, BRICK, "tie"),
         (5, FRUIT, BRICK, PEAR, "win", "", "slightly"), (6, FRUIT, BRICK, PEAR, "win", "", "much")]),
    "HelpSteer3": Case(
        [{"domain": "general", "language": "english", "context": chat(*TALK), "response1": PLUM, "response2": BRICK,
          "overall_preference": n, "individual_preference": [{"score": n, "reasoning": "x", "feedback1": "y", "feedback2": "z"}]}
         for n in (-1, 2)],
        [(1, chat(*TALK), PLUM, BRICK, "win", "", "slightly"), (2, chat(*TALK), BRICK, PLUM, "win", "", "clearly")]),
    "any scale from -3 to 3": Case(
        [{"prompt": FRUIT, "response_a": PEAR, "response_b": BRICK, "label": n} for n in (-3, 2)],
        [(1, FRUIT, BRICK, PEAR, "win", "", "much"), (2, FRUIT, PEAR, BRICK, "win", "", "clearly")],
        question="-3 and 2.*-3=first,.*3=second.*-3=second,.*3=first",
        choices="-3=second,-2=second,-1=second,0=tie,1=first,2=first,3=first"),
    "SHP": Case(
        [{"post_id": "p", "domain": "ask_train", "upvote_ratio": 0.9, "history": FRUIT, "human_ref_A": PEAR,
          "human_ref_B": BRICK, "labels": label, "score_A": a, "score_B": b, "seconds_difference": 5.0, "score_ratio": 2.0,
          "created_at_utc_A": 1, "created_at_utc_B": 2}
         for label, a, b in ((1, 20, 10), (0, 5, 10), (1, 5, 10))],
        [(1, FRUIT, PEAR, BRICK, "win"), (2, FRUIT, BRICK, PEAR, "win")],
        errors={3: "labels is '1', but score_A and score_B say the opposite"}),
    "summarize_from_feedback: comparisons": Case(
        [{"info": {"id": "t", "post": "A long day.", "title": "Day", "subreddit": "life", "site": None, "article": None},
          "summaries": [{"text": " Long.", "policy": "sup1", "note": "ok"}, {"text": " Short.", "policy": "ref", "note": "no"}],
          "choice": choice, "worker": "w1", "batch": "b3", "split": "valid1", "extra": {"confidence": 7}} for choice in (0, 1)],
        [(1, "A long day.", " Long.", " Short.", "win", "w1"), (2, "A long day.", " Short.", " Long.", "win", "w1")]),
    "summarize_from_feedback: articles": Case(
        [{"info": {"id": "t", "post": None, "title": None, "subreddit": None, "site": "cnn", "article": "A long day."},
          "summaries": [{"text": " Long.", "policy": "sup1", "note": None}, {"text": " Short.", "policy": "ref", "note": None}],
          "choice": 1, "worker": "w1", "batch": "b3", "split": "test", "extra": {"confidence": None}}],
        [(1, "A long day.", " Short.", " Long.", "win", "w1")], file_name="v.parquet"),
    "LLMBar": Case(
        [{"input": FRUIT, "output_1": PEAR, "output_2": BRICK, "label": 1},
         {"input": FRUIT, "output_1": BRICK, "output_2": PLUM, "label": 2}],
        [*WIN, (2, FRUIT, PLUM, BRICK, "win")], file_name="v.json"),
    "LLMBar: every label is 1": Case(
        [{"input": FRUIT, "output_1": PEAR, "output_2": BRICK, "label": 1}], WIN, question="--choices",
        choices="1=first,2=second", file_name="v.json"),
}  # fmt: skip


def message(key, parent, role, text, rank=None, **more):
    return {"message_id": key, "parent_id": parent, "user_id": "author", "created_date": "2023-02-05T12:00:00+00:00",
            "text": text, "role": role, "lang": "en", "review_count": 3, "deleted": False, "rank": rank, "synthetic": False,
            "message_tree_id": "m1", "tree_state": "ready_for_export", **more}  # fmt: skip


def tree_node(node, *replies):
    return node | {"replies": list(replies)}


M1 = message("m1", None, "prompter", FRUIT)
M2 = message("m2", "m1", "assistant", BRICK, 1)
M3 = message("m3", "m1", "assistant", PEAR, 0)
M4 = message("m4", "m1", "assistant", "None.")
M5 = message("m5", "m3", "prompter", "Another?")
M6 = message("m6", "m5", "assistant", PLUM, 0)
M7 = message("m7", "m5", "assistant", BRICK, 0)
M8 = message("m8", "m5", "assistant", "Spam.", 1, deleted=True)
OPEN_ASSISTANT = {
    "OpenAssistant: trees": Case(
        [{"message_tree_id": "m1", "tree_state": "ready_for_export",
          "prompt": tree_node(M1, M2, tree_node(M3, tree_node(M5, M6, M7, M8)), M4)}],
        [(1, FRUIT, PEAR, BRICK, "win"), (1, chat(*TALK), PLUM, BRICK, "tie")]),
    "OpenAssistant: messages": Case(
        [M1, M2, M3, M4, M5, M6, M7, M8, message("m9", "gone", "assistant", PLUM, 0),
         message("m10", "gone", "assistant", PEAR, 1)],
        [(3, FRUIT, PEAR, BRICK, "win"), (7, chat(*TALK), PLUM, BRICK, "tie")],
        errors={10: "parent_id is 'gone', and no row has"}),
}  # fmt: skip

ONE_QUESTION = {
    "Prodigy: options": Case(
        [{"text": FRUIT, "options": [{"id": name, "text": texts[name]} for name in order], "accept": accept, "answer": answer,
          "_annotator_id": "ann"}
         for order, accept, answer in (("xy", ["x"], "accept"), ("xy", ["y"], "accept"), ("yx", ["x"], "accept"),
                                       ("xy", ["x", "y"], "accept"), ("xy", ["x"], "reject"), ("xy", [], "ignore"))
         for texts in [{"x": PEAR, "y": BRICK}]],
        [(1, FRUIT, PEAR, BRICK, "win", "ann"), (2, FRUIT, BRICK, PEAR, "win", "ann"), (3, FRUIT, PEAR, BRICK, "win", "ann"),
         (4, FRUIT, PEAR, BRICK, "tie", "ann")]),
    "OpenAI": Case(
        [{"input": {"messages": chat(*TALK), "tools": [], "parallel_tool_calls": True}, "preferred_output": answer(PLUM),
          "non_preferred_output": answer(BRICK)}], TALK_WIN),
    "ms-swift: rejected_response": Case([{"messages": chat(*TALK, PLUM), "rejected_response": BRICK}], TALK_WIN),
    "ms-swift: rejected_messages": Case([{"messages": chat(*TALK, PLUM), "rejected_messages": chat(*TALK, BRICK)}], TALK_WIN),
    "Amazon Nova": Case(
        [{"system": [{"text": "Be"}, {"text": "brief."}], "messages": [
            {"role": "user", "content": [{"text": FRUIT}]},
            {"role": "assistant", "candidates": [{"content": [{"text": BRICK}], "preferenceLabel": "non-preferred"},
                                                 {"content": [{"text": PEAR}], "preferenceLabel": "preferred"}]}]}],
        [(1, chat(FRUIT, system="Be brief."), PEAR, BRICK, "win")]),
    "RM-Bench": Case(
        [{"prompt": FRUIT, "chosen": [PEAR, PLUM], "rejected": [BRICK, "A spoon."]}],
        [(1, FRUIT, PEAR, BRICK, "win"), (1, FRUIT, PEAR, "A spoon.", "win"), (1, FRUIT, PLUM, BRICK, "win"),
         (1, FRUIT, PLUM, "A spoon.", "win")], question="several texts.*--answer lists=all", answers=("lists=all",),
        file_name="v.json"),
    "doccano": Case(
        [{"id": 1, "text": f"{FRUIT} {PEAR} {BRICK}", "label": ["first"]}], [], question="no pair of texts"),
    "Potato": Case(
        [{"id": "1", "user": "ann", "displayed_text": FRUIT, "responses": [PEAR, BRICK], "preference": "A"}],
        [(1, FRUIT, PEAR, BRICK, "win", "ann")], question="responses.0",
        mapping={"prompt": "displayed_text", "first": "responses.0", "second": "responses.1"}),
    "PKU-SafeRLHF": Case(
        [{"prompt": FRUIT, "response_0": BRICK, "response_1": PEAR, "better_response_id": 1, "safer_response_id": 0}],
        WIN, question="response_0", mapping={"first": "response_0", "second": "response_1", "choice": "better_response_id"},
        choices="0=first,1=second"),
}  # fmt: skip
CASES = TRL | LLAMA_FACTORY | AXOLOTL | ARGILLA | LABEL_STUDIO | ARENA | FEEDBACK | OPEN_ASSISTANT | ONE_QUESTION


def vote_row(vote, expected_prompt):
    """A vote in the form of `Case.votes`."""
    sides = (vote.first.text, vote.second.text)
    better, worse = sides[::-1] if vote.choice == "second" else sides
    prompt = vote.prompt if isinstance(expected_prompt, str) else chat_of_prompt(vote.prompt)
    choice = "win" if vote.choice in ("first", "second") else vote.choice.value
    return (
        vote.row_number,
        prompt,
        better,
        worse,
        choice,
        vote.annotator,
        vote.strength.value if vote.strength else "",
    )


@pytest.mark.parametrize("name", CASES)
def test_votes_of_a_published_format(files, name):
    case = CASES[name]
    path = files.rows(case.file_name, case.rows)
    if case.question:
        with pytest.raises(DataError, match=case.question) as caught:
            files.read(path)
        if not case.votes:
            return
        assert isinstance(caught.value, ColumnMappingError)
    choices = parse_choice_words(case.choices) if case.choices else {}
    parsed = files.read(path, mapping=case.mapping, choices=choices, answers=frozenset(case.answers))
    assert [vote_row(vote, row[1]) for vote, row in zip(parsed.votes, case.votes, strict=True)] == [
        (*row, *("", "")[len(row) - 5 :]) for row in case.votes
    ]
    messages = {error.row_number: error.message for error in parsed.errors}
    assert set(messages) == set(case.errors)
    assert all(messages[row].startswith(start) for row, start in case.errors.items())


def texts_of_cells(rows, write):
    return [{key: write(cell) if isinstance(cell, list | dict) else cell for key, cell in row.items()} for row in rows]


def as_table(rows, name):
    """Rows as a CSV with all columns, in which lists are JSON (dumps) or as Python prints them (str)."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    write = json.dumps if name == "json.csv" else str
    return texts_of_cells([dict.fromkeys(columns) | row for row in rows], write)


def as_object(rows, name):
    """As pandas writes a table: orient is "index", "columns" or "split"."""
    if name == "index.json":
        return {str(number): row for number, row in enumerate(rows)}
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if name == "split.json":
        data = [[row.get(column) for column in columns] for row in rows]
        return {"columns": columns, "index": [*range(len(rows))], "data": data}
    return {column: {str(number): row.get(column) for number, row in enumerate(rows)} for column in columns}


@pytest.mark.parametrize("file_name", ["json.csv", "python.csv", "index.json", "columns.json", "split.json"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.votes])
def test_a_published_format_is_the_same_in_every_file_format(files, name, file_name):
    """Its cells with lists and objects are text in CSV: as JSON, or as Python prints them."""
    case = CASES[name]
    path = files.rows(file_name, (as_table if file_name.endswith("csv") else as_object)(case.rows, file_name))
    choices = parse_choice_words(case.choices) if case.choices else {}
    parsed = files.read(path, mapping=case.mapping, choices=choices, answers=frozenset(case.answers))
    assert [vote_row(vote, row[1]) for vote, row in zip(parsed.votes, case.votes, strict=True)] == [
        (*row, *("", "")[len(row) - 5 :]) for row in case.votes
    ]
    assert {error.row_number for error in parsed.errors} == set(case.errors)


def test_rated_rows_that_have_two_texts_are_no_lists_of_answers(files):
    row = {"prompt": FRUIT, "response": PLUM, "helpfulness": 3, "chosen": PEAR, "rejected": BRICK}
    parsed = files.parse("v.jsonl", [row, row | {"helpfulness": 1}])
    assert [vote_row(vote, FRUIT)[:5] for vote in parsed.votes] == [WIN[0], (2, *WIN[0][1:])]


@pytest.mark.parametrize(
    ("rows", "start"),
    [
        (
            [{"prompt": FRUIT, "answers": [{"answer": PEAR, "rank": "best"}, {"answer": PLUM, "rank": 2}]}],
            "rank is 'best'",
        ),
        (
            [
                ARENA_COLUMNS
                | {"turn": "last", "winner": "tie", "conversation_a": chat(FRUIT), "conversation_b": chat(FRUIT)}
            ],
            "turn is",
        ),
        ([M1, M2, M3 | {"deleted": "perhaps"}], "deleted is 'perhaps'"),
    ],
)
def test_an_error_names_the_part_of_the_row(files, rows, start):
    with pytest.raises(DataError, match=f": {start}"):
        files.parse("v.jsonl", rows)


def test_every_format_is_in_the_table_of_the_documents():
    text = (Path(__file__).resolve().parents[2] / "docs" / "FORMATS.md").read_text(encoding="utf-8")
    assert [name for name in CASES if name.partition(":")[0] not in text and not name.startswith("any ")] == []
