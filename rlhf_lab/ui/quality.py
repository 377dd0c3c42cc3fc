"""Part "Quality of the labels": agreement, consistency and habits of annotators; whom to learn from; labels to look at again."""

import json
import zlib
from typing import Any

import gradio as gr

from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import queue, supervisor
from rlhf_lab.kinds import OPEN, JobKind, Source
from rlhf_lab.quality import Agreement, Person, Stretch, alpha, ask_again, doubts, over_time, pairwise, people, votes_of
from rlhf_lab.records import RewardModelRow
from rlhf_lab.store.comparisons import annotators_of
from rlhf_lab.store.runs import get_reward_model, reward_models
from rlhf_lab.ui.context import Context, operated, read, told
from rlhf_lab.ui.train import whole
from rlhf_lab.ui.widgets import QUIET, widget

MOST_PEOPLE = 200
MOST_MODELS = 12
HEAVIEST = 10
BLOCKS = 8


def build(ctx: Context, operator: gr.BrowserState) -> None:
    desk = Desk(ctx)

    def look(question: dict[str, Any]) -> dict[str, Any]:
        return desk.look(question)

    data = {"heaviest": HEAVIEST}
    part = widget("quality", reads=[read(look)], data=data, label="Quality of the labels")

    def act(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return operated(ctx, secret, event, desk.obey)

    part.act(told(act), operator, part, **QUIET)


class Desk:
    """What the part shows and does, for all pages of a server."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._held: tuple[Any, dict[str, Any]] | None = None

    def look(self, question: dict[str, Any]) -> dict[str, Any]:
        """Everything shown, for {"source", "seen"}; {"same": True} to a page that has it."""
        source = Source(question["source"]) if question.get("source") in tuple(Source) else self._usual()
        shown = self._figures(source) | {
            "source": source.value,
            "models": self._models(),
            "doubts": self._doubts(source),
        }
        training = queue.jobs(self.ctx.db, project_id=self.ctx.project.id, kinds=[JobKind.TRAIN_REWARD], statuses=OPEN)
        shown |= {"training": bool(training), "project": self.ctx.project.id}
        seen = f"{zlib.crc32(json.dumps(shown, sort_keys=True).encode()):x}"
        return {"same": True} if question.get("seen") == seen else shown | {"seen": seen}

    def _usual(self) -> Source:
        """People's votes, unless there are only simulated ones."""
        human, simulated = (votes_of(self.ctx.db, self.ctx.project.id, source) for source in Source)
        return Source.SIMULATED if simulated and not human else Source.HUMAN

    def _figures(self, source: Source) -> dict[str, Any]:
        votes = votes_of(self.ctx.db, self.ctx.project.id, source)
        key = (self.ctx.project.id, source, hash(tuple(votes)))
        if self._held is None or self._held[0] != key:
            found = people(votes)
            self._held = key, {
                "votes": len(votes), "alpha": number(alpha(votes)), "agreement": share(pairwise(votes)),
                "people": [person_line(person) for person in found[:MOST_PEOPLE]], "more": max(0, len(found) - MOST_PEOPLE),
                "time": [stretch_line(stretch) for stretch in over_time(votes, BLOCKS)] if votes else [],
            }  # fmt: skip
        return self._held[1]

    def _models(self) -> list[dict[str, Any]]:
        return [self._model(row) for row in reward_models(self.ctx.db, self.ctx.project.id)[:MOST_MODELS]]

    def _model(self, row: RewardModelRow) -> dict[str, Any]:
        weights = row.report.get("weights") or {}
        names = annotators_of(self.ctx.db, row.snapshot)
        return {
            "id": row.id, "labels": len(row.snapshot.vote_ids), "source": row.snapshot.source.value,
            "people": [[name, weights.get(name, 1)] for name in names[:12]], "all": len(names),
            "chosen": bool(row.report.get("annotators")), "accuracy": row.report.get("accuracy"),
            "low": row.report.get("accuracy_low"), "high": row.report.get("accuracy_high"),
        }  # fmt: skip

    def _doubts(self, source: Source) -> dict[str, Any] | None:
        """The labels that the newest reward model on this source's labels finds least likely; None without one."""
        rows = reward_models(self.ctx.db, self.ctx.project.id)
        row = next((row for row in rows if row.snapshot.source is source), None)
        if row is None:
            return None
        found = doubts(self.ctx.db, get_reward_model(self.ctx.db, row.id))
        return {"model": row.id, "labels": [
            {
                "vote": doubt.vote.id, "annotator": doubt.vote.annotator, "choice": doubt.vote.choice.value,
                "probability": round(doubt.probability, 3), "prompt": doubt.pair.prompt.text, "first": doubt.pair.first.text,
                "second": doubt.pair.second.text, "open": doubt.now is None,
            }
            for doubt in found
        ]}  # fmt: skip

    def obey(self, said: dict[str, Any]) -> dict[str, Any]:
        """One act of the operator: {"do": "train" | "again", …}. Raises LabError."""
        if said.get("do") == "train":
            return {"done": self.train(said)}
        if said.get("do") == "again":
            ask_again(self.ctx.db, self.ctx.project.id, whole(said, "vote"))
            return {"done": "The vote is set aside; who cast it is asked about that pair again."}
        raise ConfigError(f'The lab cannot "{said.get("do")}" here. Reload the page and try again.')

    def train(self, said: dict[str, Any]) -> str:
        """A reward model from some people's labels: {"source", "weights": {annotator: 0 … 10}}, 0 leaves them out."""
        ctx, weights = self.ctx, said.get("weights")
        if said.get("source") not in tuple(Source) or not isinstance(weights, dict):
            raise ConfigError("The page asked for nobody's labels. Reload it and try again.")
        if any(type(weight) is not int or not 0 <= weight <= HEAVIEST for weight in weights.values()):
            raise ConfigError(f"A weight is a whole number from 0 (left out) to {HEAVIEST}.")
        source = Source(said["source"])
        voted: dict[str, int] = {}
        for vote in votes_of(ctx.db, ctx.project.id, source):
            voted[vote.annotator] = voted.get(vote.annotator, 0) + (not vote.repeat)
        kept = [name for name in voted if weights.get(name, 1) > 0]
        if not kept:
            raise ConfigError("Everybody is left out. Choose at least one annotator to learn from.")
        if queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD], statuses=OPEN):
            raise ConfigError("A reward model is being trained already; wait for it.")
        payload: dict[str, Any] = {
            "source": source.value, "config": {}, "labels": sum(voted[name] for name in kept),
            "weights": {name: weights[name] for name in kept if weights.get(name, 1) != 1},
        }  # fmt: skip
        if len(kept) < len(voted):
            payload["annotators"] = kept
        queue.submit(ctx.db, JobKind.TRAIN_REWARD, ctx.project.id, payload)
        supervisor.ensure_engine(ctx.db, ctx.home)
        return f"A reward model from {len(kept)} of {len(voted)} annotators is asked for; compare it below when it is there."


def number(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def share(found: Agreement) -> list[float | int | None]:
    """[share, low, high, of how many]"""
    low, high = found.interval
    return [number(found.share), round(low, 4), round(high, 4), found.compared]


def stretch_line(stretch: Stretch) -> dict[str, Any]:
    return {
        "start": stretch.start, "end": stretch.end, "votes": stretch.votes, "others": number(stretch.with_others.share),
        "self": number(stretch.with_self.share), "alpha": number(stretch.alpha), "left": number(stretch.left.share),
        "ties": number(stretch.ties.share), "seconds": number(stretch.seconds),
    }  # fmt: skip


def person_line(person: Person) -> dict[str, Any]:
    return {
        "name": person.annotator, "votes": person.votes, "others": share(person.with_others), "self": share(person.with_self),
        "left": share(person.left), "ties": share(person.ties), "seconds": number(person.seconds),
        "without": number(person.alpha_without), "time": [stretch_line(stretch) for stretch in person.time],
    }  # fmt: skip
