"""Which column of a file means what: guessed from the names in use, or said by the person (--map)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_lab.errors import DataError

#: What a column can mean -> the names it goes by, the surest first. Our own export's names are the meanings themselves.
MEANINGS: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "instruction", "query", "context", "post"),
    "input": ("input",),  # what an instruction is about; it follows the instruction after an empty line
    "chosen": ("chosen", "preferred", "response_chosen", "better"),
    "rejected": ("rejected", "dispreferred", "response_rejected", "worse"),
    "first": ("first", "response_a", "answer_a", "completion_a", "response1", "response_1", "answer1", "output_1",
              "text_a", "left_text", "response_j", "result_x"),
    "second": ("second", "response_b", "answer_b", "completion_b", "response2", "response_2", "answer2", "output_2",
               "text_b", "right_text", "response_k", "result_y"),
    "choice": ("choice", "winner", "preference", "label", "vote", "verdict"),
    "annotators": (),  # several columns, one a person: annotator1, annotator2 …
    "annotator": ("annotator", "worker", "rater", "labeler", "labeller", "judge", "user", "annotator_id", "worker_id"),
    "score_chosen": ("score_chosen", "chosen_score", "chosen_rating"),
    "score_rejected": ("score_rejected", "rejected_score", "rejected_rating"),
    "score_first": ("score_first", "score_a", "score1", "score_1", "rating_a", "score_x"),
    "score_second": ("score_second", "score_b", "score2", "score_2", "rating_b", "score_y"),
    "tie": ("tie", "is_tie"),
    "both_bad": ("both_bad",),
    "source": ("source",),
    "strength": ("strength",),
    "note": ("note",),
    "repeat": ("repeat",),
    "via": ("via",),
    "first_on_left": ("first_on_left",),
    "response_ms": ("response_ms",),
    "created_at": ("created_at", "timestamp", "tstamp"),
    "uuid": ("uuid",),
    "pair": ("pair_id", "pair", "comparison_id"),
    "reason": ("reason",),
    "split": ("split",),
    "model_hash": ("model_hash",),
    "checkpoint_chosen": ("checkpoint_chosen",),
    "checkpoint_rejected": ("checkpoint_rejected",),
    "seed_chosen": ("seed_chosen",),
    "seed_rejected": ("seed_rejected",),
    "chosen_ids": ("chosen_ids",),
    "rejected_ids": ("rejected_ids",),
}  # fmt: skip
#: Meanings that only our own exports have: there a column "source" or "reason" is ours, elsewhere it may say anything.
OURS = (
    "source",
    "reason",
    "split",
    "note",
    "strength",
    "repeat",
    "via",
    "first_on_left",
    "response_ms",
    "uuid",
    "model_hash",
)
PAIRED, VOTES, SCORED = "chosen and rejected", "two texts and a vote", "two texts and their scores"


class ColumnsError(DataError):
    """Only a person can say what the columns (or the votes' words) mean. words: what is not known; remedy: how the command
    line is told, which the page asks for otherwise; columns: those of the file."""

    def __init__(self, words: str, remedy: str, columns: Iterable[str]) -> None:
        super().__init__(f"{words} {remedy}")
        self.words, self.columns = words, tuple(columns)


@dataclass(frozen=True)
class Columns:
    """meaning -> column. shape: how a row says what was preferred."""

    columns: dict[str, str]
    people: tuple[str, ...]
    shape: str

    def of(self, row: Mapping[str, Any], meaning: str) -> Any:
        """What a row says of that, None where it does not."""
        name = self.columns.get(meaning)
        return None if name is None else row.get(name)

    @property
    def words(self) -> dict[str, str]:
        """For a person: every meaning with its column."""
        return self.columns | ({"annotators": ", ".join(self.people)} if self.people else {})


def parse_map(given: Iterable[str]) -> dict[str, str]:
    """["prompt=question", …] as a dict. DataError for an unknown meaning."""
    said = {}
    for item in given:
        meaning, sign, column = item.partition("=")
        if not sign or meaning.strip() not in MEANINGS:
            raise DataError(
                f"--map {item} is not understood. Write MEANING=COLUMN, for example chosen=good_answer; "
                f"the meanings are {', '.join(MEANINGS)}."
            )
        said[meaning.strip()] = column.strip()
    return said


def understand(names: Iterable[str], said: Mapping[str, str] | None = None) -> Columns:
    """The mapping of a file with these columns. What is said goes before what is guessed; "" means: none.

    ColumnsError names the columns there are and what is missing.
    """
    there = list(dict.fromkeys(names))
    said = dict(said or {})
    columns: dict[str, str] = {}
    lower = {name.lower(): name for name in reversed(there)}
    ours = {"first_on_left", "annotator", "source", "chosen"} <= set(there)
    people = _people(there, said.pop("annotators", None))
    for meaning, known in MEANINGS.items():
        if meaning in said:
            if said[meaning]:
                columns[meaning] = _there(said[meaning], there)
        elif meaning == "input" and columns.get("prompt", "").lower() != "instruction":
            continue
        elif meaning not in OURS or ours:
            found = next((lower[name] for name in known if name in lower), None)
            if found is not None and found not in said.values():
                columns[meaning] = found
    return Columns(columns, people, _shape(columns, people, there))


def _there(column: str, there: list[str]) -> str:
    if column not in there:
        raise ColumnsError(
            f'There is no column "{column}" in row 1. The columns are {_list(there)}.',
            "Choose one of them with --map.",
            there,
        )
    return column


def _people(there: list[str], said: str | None) -> tuple[str, ...]:
    """Columns that hold one person's vote each: those said, or annotator1, annotator2 …"""
    if said is not None:
        return tuple(_there(name.strip(), there) for name in said.split("+") if name.strip())
    found = tuple(
        name for name in there
        if (stem := name.lower().rstrip("0123456789")) != name.lower() and stem.rstrip("_") in ("annotator", "rater", "worker")
    )  # fmt: skip
    return found if len(found) > 1 else ()


def _shape(columns: Mapping[str, str], people: tuple[str, ...], there: list[str]) -> str:
    if "chosen" in columns and "rejected" in columns:
        return PAIRED
    if "first" in columns and "second" in columns:
        if "choice" in columns or people:
            return VOTES
        if "score_first" in columns and "score_second" in columns:
            return SCORED
        raise ColumnsError(
            f"Row 1 has two texts, but nothing says which is better. The columns are {_list(there)}.",
            "Say which column is the choice, or which are the scores: --map choice=COLUMN, or --map score_first=COLUMN --map "
            "score_second=COLUMN.",
            there,
        )
    if {"completion", "label"} <= set(there):
        raise DataError(
            "Row 1 has one completion and a label (unpaired preferences). The lab compares two texts: give pairs, as "
            "chosen and rejected."
        )
    raise ColumnsError(
        f"Row 1 has no pair of texts that the lab knows by name. The columns are {_list(there)}.",
        "Say which they are: --map chosen=COLUMN --map rejected=COLUMN, or --map first=COLUMN --map second=COLUMN --map "
        "choice=COLUMN.",
        there,
    )


def _list(names: list[str]) -> str:
    return ", ".join(names[:12]) + (" …" if len(names) > 12 else "") if names else "none"
