"""The screen Chat: ownership of answers, deletion, and two answers as a pair."""

import shutil
from types import SimpleNamespace

import pytest
from fake_runs import run_with_checkpoint
from gradio.context import LocalContext
from sqlalchemy import select
from support.page_requests import requests_of

from rlhf_lab.common.chat_format import prompt_of_chat
from rlhf_lab.common.enums import JobKind, JobStatus
from rlhf_lab.common.records import REQUESTER_KEY, Role
from rlhf_lab.config.demo import DemoConfig
from rlhf_lab.errors import NotFoundError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store import tables as t
from rlhf_lab.store.annotators import add_person
from rlhf_lab.store.database import Database
from rlhf_lab.store.label_snapshots import load_comparisons, snapshot_labels
from rlhf_lab.store.projects import count_pairs, newest_pairs, prompts
from rlhf_lab.ui.auth.visitors import Visitor
from rlhf_lab.ui.chat import api as chat
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.label import api as label

NOT_YOURS = "belongs to somebody else"
SETTINGS = {
    "models": ["run/1/4", "base"],
    "seed": 7,
    "temperature": "0,7",
    "top_p": 0.9,
    "max_new_tokens": 8,
    "reward_model_id": "",
}
TURNS = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "A tale?"},
]
CONVERSATION = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: A tale?\n\nAssistant:"


@pytest.fixture
def ctx(tmp_path, project_home, monkeypatch):
    """A multi-user lab with the labellers Ann and Bob."""
    monkeypatch.setattr(engine_process, "ensure_engine", lambda db, home: None)
    with Database.open(shutil.copytree(project_home, tmp_path, dirs_exist_ok=True)) as db:
        add_person(db, "Ann")
        add_person(db, "Bob")
        yield Context(tmp_path, db).as_multi_user(open_to_all=False)


@pytest.fixture
def act_as(ctx):
    """act_as(name): from now on that person sends the requests; "" is a viewer."""
    tokens = []

    def become(name):
        cookie = ctx.access.cookie_value(Visitor(Role.LABELLER, name))
        request = SimpleNamespace(
            cookies={ctx.access.login_cookie_name: cookie} if name else {}, headers={"host": "lab.example"}
        )
        tokens.append(LocalContext.request.set(request))

    become("Ann")
    yield become
    for token in reversed(tokens):
        LocalContext.request.reset(token)


@pytest.fixture
def screen(ctx, act_as, calls):
    run_with_checkpoint(ctx, 4)
    return calls(chat, ctx)


def ask(screen, **changes):
    return screen.ask({"turns": TURNS} | SETTINGS | changes)


def answered(
    ctx, screen, texts=("Once a bird sang.", "Once a cat ran."), prompts=(CONVERSATION, CONVERSATION), **changes
):
    """The jobs of two complete answers. prompts: as the two models read the conversation."""
    jobs, engine = ask(screen, **changes), engine_process.record_heartbeat(ctx.db, "x")
    for job_id, text, prompt in zip(jobs, texts, prompts, strict=True):
        job = queue.claim(ctx.db, [JobKind.CHAT], engine)
        result = {"text": text, "tokens": [len(text), 1], "prompt": prompt, "checkpoint": job.payload["checkpoint"]}
        queue.finish(ctx.db, job_id, result)
    return jobs


def test_the_jobs_of_a_message(ctx, screen):
    first, second = (queue.get_job(ctx.db, job_id) for job_id in ask(screen))
    assert (first.kind, first.project_id) == (JobKind.CHAT, ctx.project.id)
    assert first.payload == {
        "chat": TURNS, "checkpoint": "run/1/4", "seed": 7, "temperature": 0.7, "top_p": 0.9, "max_new_tokens": 8,
        REQUESTER_KEY: "Ann",
    }  # fmt: skip
    assert second.payload == first.payload | {"checkpoint": "base"}


def test_examples_are_short_prompts_that_begin_differently():
    """The second begins like the first, the fourth is too long, the fifth a conversation, the sixth came before."""
    first, second, third = "What is 6 + 2?", "What is 6 - 1?", "What is a pear?"
    turns = prompt_of_chat([{"role": role, "content": "Hi"} for role in ("user", "assistant", "user")])
    texts = [first, second, third, "x" * 121, turns, first]
    assert chat.example_messages([*texts, "y" * 120, "Another one."]) == [first, third, "y" * 120]
    assert chat.example_messages(texts) == [first, third, second]  # of too few that differ, others follow
    assert chat.example_messages(texts[3:5]) == []


def test_examples_come_from_the_held_out_prompts_of_the_project(ctx, screen):
    held_out = [prompt.text for prompt in prompts(ctx.db, ctx.project.id, "eval")]
    examples = screen.options({})["examples"]
    assert len(examples) == 3
    assert set(examples) < set(held_out)
    assert examples[0] == held_out[0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"turns": []}, "message"), ({"turns": [{"role": "user", "content": " "}]}, "message"), ({"turns": TURNS[:2]}, "message"),
        ({"turns": [{"role": "user", "content": "x" * 40_001}]}, "message"), ({"top_p": 1.01}, "top_p"),
        ({"max_new_tokens": 513}, "max_new_tokens"), ({"turns": [{"role": "system", "content": "x"}]}, None),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_used_submits_nothing(ctx, screen, changes, field):
    reply = ask(screen, **changes)
    assert reply["error"]
    assert reply.get("field") == field
    assert queue.jobs(ctx.db, kinds=[JobKind.CHAT]) == []


def test_the_text_is_read_while_it_is_written_and_kept_when_it_is_stopped(ctx, screen):
    jobs = ask(screen)
    assert [answer["status"] for answer in screen.answers({"jobs": jobs})] == ["queued", "queued"]
    queue.claim(ctx.db, [JobKind.CHAT], engine_process.record_heartbeat(ctx.db, "x"))
    queue.update_progress(
        ctx.db, jobs[0], 0.5, partial_result={"text": "Once a", "tokens": [4, 5], "turns_left_out": 2}
    )
    answer = screen.answers({"jobs": jobs})[0]
    assert (answer["status"], answer["is_waiting"], answer["text"]) == ("running", True, "Once a")
    assert (answer["tokens"], answer["turns_left_out"]) == (2, 2)
    assert screen.stop_answers({"jobs": jobs}) is None
    answers = screen.answers({"jobs": jobs})
    assert [(answer["status"], answer["text"]) for answer in answers] == [("cancelled", "Once a"), ("cancelled", "")]
    assert not queue.update_progress(ctx.db, jobs[0], 0.6)  # the engine stops


def test_an_error_is_shown(ctx, screen):
    jobs = ask(screen)
    queue.fail(ctx.db, jobs[0], "your message takes 99 tokens")
    assert screen.answers({"jobs": jobs})[0]["error"] == "Your message takes 99 tokens"


def test_nobody_else_reads_stops_deletes_or_labels_an_answer(ctx, screen, act_as):
    jobs = answered(ctx, screen)
    for name in ("Bob", ""):
        act_as(name)
        for answer in screen.answers({"jobs": jobs, "annotator": "Ann"}):
            assert NOT_YOURS in answer["error"]
            assert (answer["status"], answer["is_waiting"], answer["text"]) == ("failed", False, "")
    act_as("Bob")
    for request in (screen.stop_answers, screen.make_pair):
        assert NOT_YOURS in request({"jobs": jobs, "annotator": "Ann"})["error"]
    assert screen.forget({"jobs": jobs, "annotator": "Ann"}) is None  # Ann's are kept: see below
    assert len(ask(screen, forget=jobs)) == 2
    assert screen.answers({"jobs": jobs}) == screen.answers({"jobs": [9998, 9999]})
    act_as("")
    for request in (screen.ask, screen.make_pair, screen.stop_answers, screen.forget):
        assert "join code" in request({"jobs": jobs})["error"]
    act_as("Ann")
    assert len(screen.answers({"jobs": jobs})) == 2


def test_in_demo_mode_only_the_operator_makes_chat_pairs(ctx, screen, monkeypatch):
    jobs, demo = answered(ctx, screen), ctx.with_demo(DemoConfig())
    of_demo, pairs_before = requests_of(demo, chat.api), count_pairs(ctx.db, ctx.project.id)
    assert "only the operator can make a pair" in of_demo.make_pair({"jobs": jobs})["error"]
    with ctx.db.read() as conn:
        assert not conn.execute(select(t.prompts.c.id).where(t.prompts.c.text == CONVERSATION)).all()
    monkeypatch.setattr(Context, "is_operator", lambda self, request=None: True)
    assert of_demo.make_pair({"jobs": jobs}) is None
    assert count_pairs(ctx.db, ctx.project.id) == pairs_before + 1


def test_nothing_new_is_asked_for_while_a_demo_is_to_be_reset(ctx, screen, monkeypatch):
    demo = ctx.with_demo(DemoConfig())
    monkeypatch.setattr(demo.demo, "is_reset_due", lambda: True)
    payload = chat.AskPayload.model_validate({"turns": TURNS} | SETTINGS)
    with pytest.raises(chat.LabelError, match="reset"):
        chat.submit_chat(demo, payload, "Ann")


def test_no_reply_tells_the_number_of_a_pair(ctx, screen):
    """It tells how old a pair is, so that ordinary pairs could be told from gold ones; pages know pairs by other numbers."""
    made = screen.make_pair({"jobs": answered(ctx, screen)})
    (pair,) = newest_pairs(ctx.db, ctx.project.id, 1)
    shown = requests_of(ctx, label.api).opened()["pair"]
    assert made is None
    assert shown["left"] in (pair.first.text, pair.second.text)
    assert shown["id"] != pair.id


NO_MODELS = (
    "", "x", "run/1", "run/1/5", "run/2/4", "run/1/4/x", "run/1/best/4", "run/-1/4", "run/1/-4", "run//latest", "run/1/Latest",
    "run/ 1/4", "run/٣/4", "run/1/٤", f"run/{9**30}/latest", "base/best/4", "base ", "../../etc/passwd", "base\n", "run/1/4\n",
)  # fmt: skip


@pytest.mark.parametrize("model", NO_MODELS)
def test_only_models_of_the_open_project_write_texts(ctx, screen, model):
    assert "does not have this model" in ask(screen, models=["base", model])["error"]
    assert queue.jobs(ctx.db, kinds=[JobKind.CHAT]) == []


def test_a_model_of_another_project_writes_no_texts(ctx, screen):
    new_project(ctx.db)
    for model in ("run/1/4", "run/1/latest", "run/1/best"):
        assert "does not have this model" in ask(screen, models=[model])["error"]
    assert len(ask(screen, models=["base"])) == 1


def test_answers_are_deleted_with_the_next_message_on_request_and_when_they_are_old(ctx, screen):
    first = answered(ctx, screen)
    second = answered(ctx, screen, forget=first)
    for job_id in first:
        with pytest.raises(NotFoundError):
            queue.get_job(ctx.db, job_id)
    queue.remove_old_chats(ctx.db, 60)
    assert queue.get_job(ctx.db, second[0]).status is JobStatus.DONE
    assert screen.forget({"jobs": second}) is None
    old, unfinished = answered(ctx, screen)[1], ask(screen)[0]
    other = queue.submit(ctx.db, JobKind.COMPLETE, ctx.project.id, {})
    queue.cancel(ctx.db, other.id)
    queue.remove_old_chats(ctx.db, -1)
    assert unfinished in [job.id for job in queue.jobs(ctx.db, kinds=[JobKind.CHAT])]
    assert old not in [job.id for job in queue.jobs(ctx.db, kinds=[JobKind.CHAT])]
    assert queue.get_job(ctx.db, other.id).status is JobStatus.CANCELLED


def test_a_conversation_goes_on_after_its_answers_were_deleted(ctx, screen):
    """As an hour after the last message, or if the reply to a message was lost, which is then sent again."""
    jobs = answered(ctx, screen)
    queue.remove_old_chats(ctx.db, -1)
    assert [answer["status"] for answer in screen.answers({"jobs": jobs})] == ["failed", "failed"]
    assert len(ask(screen, forget=jobs)) == 2
    assert screen.forget({"jobs": jobs}) is None


def test_two_answers_become_the_next_pair_and_their_label_is_trained_on(ctx, screen):
    before, pairs_before = len(prompts(ctx.db, ctx.project.id, "train")), count_pairs(ctx.db, ctx.project.id)
    assert screen.make_pair({"jobs": answered(ctx, screen)}) is None
    (pair,) = newest_pairs(ctx.db, ctx.project.id, 1)
    assert (pair.prompt.text, pair.prompt.split, pair.reason) == (CONVERSATION, "train", "chat")
    sides = [(side.text, side.token_ids, side.checkpoint, side.seed) for side in (pair.first, pair.second)]
    assert sorted(sides) == [("Once a bird sang.", (17, 1), "run/1/4", 7), ("Once a cat ran.", (15, 1), "base", 7)]
    assert len(prompts(ctx.db, ctx.project.id, "train")) == before  # nothing is sampled for it
    page = requests_of(ctx, label.api)
    shown = page.opened()["pair"]
    assert shown["turns"] == TURNS
    side = "left" if shown["left"] == "Once a cat ran." else "right"
    page.vote({"uuid": "u", "pair_id": shown["id"], "choice": side})
    (comparison,) = load_comparisons(ctx.db, snapshot_labels(ctx.db, ctx.project.id, "human"))
    assert (comparison.prompt, comparison.chosen) == (CONVERSATION, "Once a cat ran.")
    again = screen.make_pair({"jobs": answered(ctx, screen)})
    assert "already" in again["error"]
    assert count_pairs(ctx.db, ctx.project.id) == pairs_before + 1


def test_a_text_is_never_stored_twice(ctx, screen):
    for texts in (("Once a bird sang.", "Once a cat ran."), ("Once a cat ran.", "Once a moon rose.")):
        screen.make_pair({"jobs": answered(ctx, screen, texts)})
    with ctx.db.read() as conn:
        prompt_id = conn.execute(select(t.prompts.c.id).where(t.prompts.c.text == CONVERSATION)).scalar_one()
        stored = conn.execute(select(t.completions.c.text).where(t.completions.c.prompt_id == prompt_id)).scalars()
        assert sorted(stored) == ["Once a bird sang.", "Once a cat ran.", "Once a moon rose."]


def test_what_cannot_become_a_pair(ctx, screen):
    stopped = ask(screen)
    screen.stop_answers({"jobs": stopped})
    assert "two complete answers" in screen.make_pair({"jobs": stopped})["error"]
    alone = answered(ctx, screen)[:1]
    assert "two complete answers" in screen.make_pair({"jobs": alone})["error"]
    assert "are equal" in screen.make_pair({"jobs": answered(ctx, screen, ("Once.", "Once. "))})["error"]
    evaluation = prompts(ctx.db, ctx.project.id, "eval")[0].text
    assert "evaluation" in screen.make_pair({"jobs": answered(ctx, screen, prompts=(evaluation,) * 2)})["error"]
    different = answered(ctx, screen, prompts=(CONVERSATION, "A tale?"))
    assert "belong to different conversations" in screen.make_pair({"jobs": different})["error"]
    jobs = answered(ctx, screen)
    new_project(ctx.db)
    assert "Another project" in screen.make_pair({"jobs": jobs})["error"]


def test_options_name_the_models_and_how_the_embedded_one_answers(screen):
    options = screen.options({})
    assert options["models"] == [["base", "base model"]]
    assert options["has_chat_template"] is False
    assert (options["run"], options["steps"]) == (None, [])
