"""Rows of other shapes as rows of two texts: scored answers, rated rows, message trees, votes of several people.

The functions for one row take its cells and give those of new rows, whose columns have names that `column_mapping` knows.
They raise UnreadableError.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlhf_lab.common.chat_format import ROLE_KEYS, UnreadableError, role_of
from rlhf_lab.importers.cell_parsers import parse_bool, parse_int, parse_named, parse_number
from rlhf_lab.importers.cells import ANSWER_KEYS, RANK_KEY, SCORE_KEYS, Kind, is_empty_cell, one_result, read_cell
from rlhf_lab.importers.parsed_rows import LeftOut, RowError, SourceRow

Cells = dict[str, Any]
SourceRows = Iterable[SourceRow | RowError]
CellExpansion = Callable[[Cells], Iterable[Cells | str]]  # of one row; a text says why a part of it does not count
RowExpansion = Callable[[SourceRows], Iterator[SourceRow | RowError]]

MAX_ANSWERS = 16  # to one prompt; they make 120 comparisons
MAX_TURNS = 200


def limit_rows(rows: SourceRows, max_rows: int, noun: str) -> list[SourceRow | RowError]:
    """The rows, and an error where there are more than max_rows."""
    limited = list(itertools.islice(rows, max_rows + 1))
    if len(limited) > max_rows and not (isinstance(limited[-1], RowError) and limited[-1].row_number == 0):
        location = f"row {limited[-1].row_number}"
        limited[-1] = RowError(0, location, f"more than {max_rows:,} {noun}. Import the file in parts.")
    return limited


def expand_each(expand: CellExpansion) -> RowExpansion:
    """An expansion of all rows that expands each for itself."""

    def expand_all(rows: SourceRows) -> Iterator[SourceRow | RowError]:
        for row in rows:
            if isinstance(row, RowError):
                yield row
                continue
            try:
                for cells in expand(row.cells):
                    if isinstance(cells, str):
                        yield LeftOut(row.row_number, row.location, cells)
                    else:
                        yield replace(row, cells=cells)
            except UnreadableError as error:
                yield _row_error(row, str(error))
            except (AttributeError, KeyError, TypeError, ValueError):  # for example a list in place of an object
                yield _row_error(row, "the row has another form than the other rows")

    return expand_all


def _row_error(row: SourceRow, message: str) -> RowError:
    return RowError(row.row_number, row.location, f"{message}. Correct the row or take it out.")


def pair_answers(shared: Cells, answers: Sequence[Cells]) -> Iterator[Cells]:
    """Each two of the answers: their cells with the suffixes _a and _b, and the shared cells."""
    if len(answers) > MAX_ANSWERS:
        raise UnreadableError(f"there are {len(answers)} answers to one prompt, more than {MAX_ANSWERS}")
    for sides in itertools.combinations(answers, 2):
        named = [
            {f"{name}_{side}": value for name, value in cells.items()} for side, cells in zip("ab", sides, strict=True)
        ]
        yield shared | named[0] | named[1]


def split_answer_list(column: str, cells: Cells) -> Iterator[Cells]:
    """Comparisons of the answers in one cell."""
    answers = []
    for item in _require_answers(cells, column):
        answer = {"response": next(item[key] for key in ANSWER_KEYS if key in item)}
        scores = {key: item[key] for key in SCORE_KEYS if key in item}
        answers.append(answer | (scores or {"score": _score_of_rank(item.get(RANK_KEY))}))
    return pair_answers(_without(cells, column), answers)


def split_parallel_lists(texts: str, scores: str, cells: Cells) -> Iterator[Cells]:
    """Comparisons of the answers in one cell, whose scores are in another."""
    answers, ratings = _require_answers(cells, texts), list_in(cells, scores)
    if len(answers) != len(ratings):
        raise UnreadableError(f"{texts} has {len(answers)} answers and {scores} has {len(ratings)} numbers")
    pairs = zip(answers, ratings, strict=True)
    return pair_answers(_without(cells, texts, scores), [{"response": text, "score": score} for text, score in pairs])


def pair_text_lists(chosen: str, rejected: str, is_paired: bool, cells: Cells) -> Iterator[Cells]:
    """Comparisons of the texts in two lists: those at the same place, or each of the one with each of the other."""
    sides = [list_in(cells, name) or _one_text(cells, name) for name in (chosen, rejected)]
    if not all(sides):
        raise UnreadableError(f"{chosen if not sides[0] else rejected} holds no list of texts")
    if is_paired and len(sides[0]) != len(sides[1]):
        raise UnreadableError(f"{chosen} has {len(sides[0])} texts and {rejected} has {len(sides[1])}")
    if max(map(len, sides)) > MAX_ANSWERS:
        raise UnreadableError(f"there are more than {MAX_ANSWERS} texts on one side")
    pairs = zip(*sides, strict=True) if is_paired else itertools.product(*sides)
    yield from (cells | {chosen: text_a, rejected: text_b} for text_a, text_b in pairs)


def _one_text(cells: Cells, column: str) -> list[str]:
    """The text in a cell as a list; an empty list for any other cell."""
    text = cells.get(column)
    return [text] if isinstance(text, str) and not is_empty_cell(text) and read_cell(text).decoded is text else []


def list_in(cells: Cells, column: str) -> list[Any]:
    """The list in a cell, or in its text; an empty one for any other cell."""
    value = read_cell(cells.get(column)).decoded
    return value if isinstance(value, list) else []


def _require_answers(cells: Cells, column: str) -> list[Any]:
    if len(answers := list_in(cells, column)) < 2:
        raise UnreadableError(f"{column} has fewer than two answers")
    return answers


def _score_of_rank(rank: Any) -> float | None:
    return None if is_empty_cell(rank) else -parse_named(RANK_KEY, parse_number, rank)


def _without(cells: Cells, *columns: str) -> Cells:
    return {name: value for name, value in cells.items() if name not in columns}


def pair_rated_rows(prompt: str, text: str, score: str) -> RowExpansion:
    """Comparisons of the rows that have the same prompt and one rated answer each."""

    def expand_all(rows: SourceRows) -> Iterator[SourceRow | RowError]:
        earlier: dict[str, list[SourceRow]] = defaultdict(list)
        for row in rows:
            if isinstance(row, RowError):
                yield row
                continue
            others = earlier[str(row.cells.get(prompt))]
            if len(others) >= MAX_ANSWERS:
                yield _row_error(row, f"more than {MAX_ANSWERS} rows have this prompt")
                continue
            shared = _without(row.cells, text, score)
            for other in others:
                answers = [{"response": cells.get(text), score: cells.get(score)} for cells in (other.cells, row.cells)]
                yield from (replace(row, cells=cells) for cells in pair_answers(shared, answers))
            others.append(row)
        yield from (
            _row_error(others[0], "no other row has this prompt") for others in earlier.values() if len(others) == 1
        )

    return expand_all


def split_tree(cells: Cells) -> Iterator[Cells]:
    """Comparisons of the ranked replies of an OpenAssistant tree; messages without a rank are not compared."""
    stack: list[tuple[Any, tuple[Any, ...]]] = [(read_cell(cells["prompt"]).decoded, ())]
    while stack:
        message, path = stack.pop()
        if len(path) >= MAX_TURNS:
            raise UnreadableError(f"the tree has more than {MAX_TURNS} turns")
        path = (*path, {"role": message.get("role"), "text": message.get("text")})
        replies = message.get("replies") or []
        stack.extend((reply, path) for reply in reversed(replies))
        yield from pair_answers(
            {"prompt": list(path)}, [_ranked_answer(reply) for reply in replies if _is_ranked(reply)]
        )


def _is_ranked(message: Mapping[str, Any]) -> bool:
    return (
        message.get("role") == "assistant"
        and not is_empty_cell(message.get(RANK_KEY))
        and not parse_named("deleted", parse_bool, message.get("deleted"))
    )


def _ranked_answer(message: Mapping[str, Any]) -> Cells:
    return {"response": message.get("text"), "score": _score_of_rank(message.get(RANK_KEY))}


def pair_ranked_messages(rows: SourceRows) -> Iterator[SourceRow | RowError]:
    """Comparisons of ranked replies to the same message, where each row of the file is a message and names its parent."""
    messages: dict[str, Cells] = {}
    replies: dict[str, list[SourceRow]] = defaultdict(list)
    for row in rows:
        if isinstance(row, RowError):
            yield row
            continue
        messages[_message_id(row.cells, "message_id")] = row.cells
        try:
            if _is_ranked(row.cells):
                replies[_message_id(row.cells, "parent_id")].append(row)
        except UnreadableError as error:
            yield _row_error(row, str(error))
    for parent, ranked in replies.items():
        if len(ranked) < 2:
            continue
        try:
            shared = {"prompt": _thread(messages, parent)}
            for sides in pair_answers(shared, [_ranked_answer(row.cells) for row in ranked]):
                yield replace(ranked[-1], cells=sides)
        except UnreadableError as error:
            yield _row_error(ranked[-1], str(error))


def _message_id(cells: Cells, column: str) -> str:
    """The id in a cell as a text, "" for none."""
    return "" if is_empty_cell(cells.get(column)) else str(cells[column])


def _thread(messages: Mapping[str, Cells], last: str) -> list[Cells]:
    """The messages from the first one to `last`."""
    thread: list[Cells] = []
    while last:
        if last not in messages:
            raise UnreadableError(f"parent_id is {last[:40]!r}, and no row has that message_id")
        if len(thread) >= MAX_TURNS:
            raise UnreadableError(f"the message has more than {MAX_TURNS} turns before it")
        thread.append({"role": messages[last].get("role"), "text": messages[last].get("text")})
        last = _message_id(messages[last], "parent_id")
    return thread[::-1]


def cut_conversations(cells: Cells) -> Iterator[Cells]:
    """Two conversations up to the answer of the turn that the vote is about; the column "turn" counts from 1."""
    turn = parse_named("turn", parse_int, cells.get("turn"))
    yield _without(cells, "turn") | {
        column: _cut(read_cell(cells.get(column)).contents, turn) for column in ("conversation_a", "conversation_b")
    }


def _cut(chat: Any, turn: int | None) -> Any:
    if not isinstance(chat, list) or turn is None:
        return chat
    starts = [i for i, message in enumerate(chat) if any(role_of(message.get(key)) == "user" for key in ROLE_KEYS)]
    return chat[: starts[turn]] if 0 < turn < len(starts) else chat


def split_rejected_response(cells: Cells) -> Iterator[Cells]:
    """ms-swift: the messages end with the chosen answer, and the rejected one is beside them."""
    messages = read_cell(cells.get("messages")).contents
    if not isinstance(messages, list) or len(messages) < 2:
        raise UnreadableError("messages is not a conversation that ends with the chosen answer")
    yield _without(cells, "messages", "rejected_response") | {
        "prompt": messages[:-1], "chosen": messages[-1:], "rejected": cells.get("rejected_response")
    }  # fmt: skip


def split_candidates(cells: Cells) -> Iterator[Cells]:
    """Amazon Nova: the last message has two candidates, and each has a label."""
    messages = read_cell(cells.get("messages")).decoded
    *turns, last = messages if isinstance(messages, list) and messages else [{}]
    labels = {item.get("preferenceLabel"): item.get("content") for item in last.get("candidates") or ()}
    if set(labels) != {"preferred", "non-preferred"} or len(last["candidates"]) != 2:
        raise UnreadableError('messages does not end with a "preferred" and a "non-preferred" candidate')
    sides = {"chosen": labels["preferred"], "rejected": labels["non-preferred"]}
    system = {"system": read_cell(cells["system"]).decoded} if "system" in cells else {}
    yield _without(cells, "messages") | system | {"prompt": turns} | {
        name: [{"role": "assistant", "content": content}] for name, content in sides.items()
    }  # fmt: skip


def split_annotations(cells: Cells) -> Iterator[Cells | str]:
    """A row for each annotation of a Label Studio task. A pair that the annotator left is a skip; a list has no two texts."""
    annotations, data = list_in(cells, "annotations"), read_cell(cells["data"]).decoded
    if not annotations:
        raise UnreadableError("annotations is empty")
    for annotation in annotations:
        person = annotation.get("completed_by")
        if isinstance(person, dict):
            person = person.get("email") or person.get("id")
        vote = {"annotator": person, "created_at": annotation.get("created_at")}
        if not annotation.get("was_cancelled"):
            choice = _choice_of_results(annotation.get("result") or [])
            yield data | vote | {"ranking" if read_cell(choice).kind is Kind.RANKING else "choice": choice}
        elif any(map(_texts_by_id, data.values())):
            yield "the annotator left the task"
        else:
            yield data | vote | {"choice": "skip"}


def _choice_of_results(results: Sequence[Mapping[str, Any]]) -> Any:
    """The one answer of an annotation; None if there is none."""
    values = [result.get("value") or {} for result in results]
    answers = [value.get("selected", value) for value in values if "selected" in value or "ranker" in value] or [
        word for value in values for word in value.get("choices", ())
    ]
    if len(answers) > 1:
        raise UnreadableError(f"an annotation has {len(answers)} answers, where one says which text is better")
    return answers[0] if answers else None


def split_ranking(column: str, cells: Cells) -> Iterator[Cells]:
    """Comparisons of the texts of a list whose ids are ranked in the column, the best first."""
    ranker = one_result(read_cell(cells.get(column)).decoded).get("ranker") or {}
    groups = list(filter(None, ranker.values()))
    if len(groups) != 1:
        raise UnreadableError(f"{column} sorts texts into {len(groups)} groups, and does not rank them in one")
    ids = list(map(str, groups[0]))
    texts = {name: _texts_by_id(value) for name, value in cells.items() if name != column}
    ranked = next((name for name in texts if set(ids) <= set(texts[name])), "")
    if not ranked:
        raise UnreadableError(f"{column} ranks {', '.join(ids)[:40]!r}, and no list has texts with these ids")
    answers = [{"response": texts[ranked][key], "score": -rank} for rank, key in enumerate(ids)]
    return pair_answers(_without(cells, column, ranked), answers)


def _texts_by_id(value: Any) -> dict[str, Any]:
    """Id -> text of the items of a Label Studio list: [{"id", "title", "body" or "html"}, …]; {} for any other cell."""
    items = read_cell(value).decoded
    if not isinstance(items, list) or not all(isinstance(item, dict) and "id" in item for item in items):
        return {}
    return {
        str(item["id"]): next((item[key] for key in ("body", "html", "title") if item.get(key) is not None), None)
        for item in items
    }


def join_responses(cells: Cells) -> Iterator[Cells]:
    """The cells of an Argilla record, each question with a list of its responses: {"value", "user_id", "status"}."""
    fields, responses = (read_cell(cells.get(name)).decoded for name in ("fields", "responses"))
    if isinstance(fields, dict) and isinstance(responses, dict):
        yield fields | responses
        return
    joined = {name: value for name, value in cells.items() if ".responses" not in name and ".suggestion" not in name}
    for name in [name for name in cells if name.endswith(".responses")]:
        values, users, states = (list_in(cells, key) for key in (name, f"{name}.users", f"{name}.status"))
        parts = itertools.zip_longest(values, users, states)
        joined[name.removesuffix(".responses")] = [
            {"value": value, "user_id": user, "status": status} for value, user, status in parts
        ]
    yield joined


def split_responses(column: str, cells: Cells) -> Iterator[Cells | str]:
    """A row for each submitted response to a question, or for each comparison of one that ranks the texts."""
    responses = list_in(cells, column)
    if not responses:
        raise UnreadableError(f"{column} holds no response")
    for response in responses:
        if response.get("status") not in (None, "submitted"):
            yield f"a response is {response['status']}"
            continue
        vote = {"annotator": response["user_id"]}
        if not isinstance(response["value"], list | dict):
            yield cells | vote | {column: response["value"]}
            continue
        ranks = _parse_ranking(response["value"], column)
        if missing := [name for name in ranks if name not in cells]:
            raise UnreadableError(f"{column} ranks {missing[0][:40]!r}, and no column has this name")
        answers = [{"response": cells[name], "score": _score_of_rank(rank)} for name, rank in ranks.items()]
        yield from pair_answers(_without(cells, column, *ranks) | vote, answers)


def _parse_ranking(value: Any, column: str) -> dict[str, Any]:
    """Name of a text -> its rank, from names with the best first, a list of {"value", "rank"}, or {"value": […], "rank": […]}."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return {name: rank for rank, name in enumerate(value, 1)}
    try:
        if isinstance(value, dict):
            return dict(zip(map(str, value["value"]), value["rank"], strict=True))
        return {str(item["value"]): item["rank"] for item in value}
    except (KeyError, TypeError, ValueError):
        raise UnreadableError(f"{column} is not a ranking of texts") from None
