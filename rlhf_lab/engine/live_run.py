"""What a live run does between its steps: fit a head to the labels so far, and make pairs for the people who label.

The head is that of the instant reward model, fitted in this process to the stored labels. Each version is stored before a step
uses it, and its event is replayed when the run is resumed, so the steps are repeated with the same numbers.

A pair consists of a text of the step's rollouts and another text for the same prompt: by the policy one step later, by the base
model, or by an earlier checkpoint (quality/brake.py chooses it). Both texts are stored with their tokens and features, so the
next head can learn from a vote at once. Nothing here changes what the trainer does, apart from the head: all draws have seeds of
their own.
"""

import hashlib
import random
from collections.abc import Sequence
from typing import NamedTuple

from rlhf_lab.common.enums import Choice, Opponent
from rlhf_lab.common.records import NewCompletion, Prompt, Run
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.core.evidence_budget import evidence_budget
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.text_features import add_missing_features, compute_features
from rlhf_lab.jobs.instant_reward import InstantModel, labels_to_learn_from
from rlhf_lab.jobs.judge_labelling import judge_vote
from rlhf_lab.jobs.retraining import IGNORED_KEY, chosen_attributes
from rlhf_lab.judges.builtin import Judge
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.sampling.sampler import sample, uniforms
from rlhf_lab.store.database import Database
from rlhf_lab.store.features import PairLabel, add_features
from rlhf_lab.store.live_runs import (
    LiveHead,
    LivePair,
    add_head,
    add_live_pairs,
    count_live_pairs,
    get_head,
    has_pairs_of_step,
    newest_version,
    unanswered_pairs,
)
from rlhf_lab.store.projects import add_completions, add_pairs, get_pair, get_project
from rlhf_lab.store.votes import cast_vote
from rlhf_lab.training.policy.trainer import RolloutRow

OPPONENT_SLOT = "opponent"
WAITING_PAIRS = 4  # unanswered pairs of the last FRESH_STEPS steps, up to which new ones are made
FRESH_STEPS = 5
PAIRS_PER_STEP = 2
MAX_FEATURE_BATCHES = 4  # computed at a step for labelled texts that have none
LIVE_REASON = "live"
#: Who writes the other text, in turn; None: the policy. In a run whose reward is not live, the pairs only measure.
TURNS = (None, Opponent.BASE, Opponent.BEST)
MEASURING_TURNS = (Opponent.BASE, Opponent.BEST)
JUDGE_KEY = (
    "live_judge"  # in the manifest of a run whose judge labels: every how many steps, at most how many, with what noise
)


class _Drawn(NamedTuple):
    """A rollout to compare, and who writes the other text. row: of the rollouts. checkpoint: of the other model."""

    prompt: int
    tokens: list[int]
    row: int
    opponent: Opponent | None
    checkpoint: str


class LiveHeads:
    """Fits the heads of a live run to the labels of its project."""

    def __init__(self, model_cache: ModelCache, run: Run, config: PolicyConfig) -> None:
        self.model_cache, self.run = model_cache, run
        assert config.kl_budget is not None
        self.full_budget = config.kl_budget
        self._seen: tuple[list[PairLabel], tuple[str, ...] | None] | None = None

    def newest(self) -> tuple[LiveHead, tuple[str, ...]] | None:
        """Fit the present labels and store the head; also the attributes that its scores ignore, by the present choice for the
        project's reward models. None if labels and choice are those of the last head, or the labels say too little.

        Each fit starts from scratch, so the weights depend on the labels and their texts alone.
        """
        db, project_id = self.model_cache.db, self.run.project_id
        source, labels = labels_to_learn_from(db, project_id)
        choice = chosen_attributes(db, project_id, source)
        if (labels, choice) == self._seen:
            return None
        model = InstantModel(db, project_id, self.run.manifest.get(IGNORED_KEY, ()))
        model.update()
        for _ in range(MAX_FEATURE_BATCHES):
            if not model.figures.waiting or not add_missing_features(self.model_cache, project_id):
                break
            model.update()
        if not model.figures.waiting:
            self._seen = model.labels, choice
        weights, version, ignored = model.weights(), newest_version(db, self.run.id), model.figures.ignored
        learned = [label.vote_id for label in model.learned]
        digest = hashlib.sha256(repr([learned, ignored] if ignored else learned).encode()).hexdigest()
        if weights is None or (version and get_head(db, self.run.id, version).labels_digest == digest):
            return None
        figures = model.figures
        budget = evidence_budget(self.full_budget, figures.right or 0.0, figures.decided)
        head = LiveHead(self.run.id, version + 1, figures.labels, figures.decided, digest, budget, weights)
        add_head(db, head)
        return head, ignored


class LivePairs:
    """Makes the pairs of a run."""

    def __init__(
        self, model_cache: ModelCache, adapters: Adapters, run: Run, config: PolicyConfig, prompts: Sequence[Prompt]
    ) -> None:
        self.model_cache, self.adapters, self.run, self.config, self.prompts = (
            model_cache, adapters, run, config, prompts,
        )  # fmt: skip
        self.turns = TURNS if config.live else MEASURING_TURNS
        self._secret = get_project(model_cache.db, run.project_id).seed

    def add(
        self, step: int, rollouts: Sequence[RolloutRow], policy_slot: str, checkpoint_step: int | None,
        *, only_checkpoint: bool = False,
    ) -> None:  # fmt: skip
        """Store pairs of the policy after `step` steps, unless enough wait for an answer or those of the step exist.

        rollouts: its responses, from which the next step has learned. policy_slot: of the policy after that step.
        checkpoint_step: of the earlier checkpoint to compare with, None without one. only_checkpoint: also in the base's turns.
        """
        db = self.model_cache.db
        waiting = len(unanswered_pairs(db, self.run.id, step - FRESH_STEPS))
        is_due = step % max(1, self.config.brake_every) == 0 and (step > 0 or self.config.live)
        if not is_due or waiting >= WAITING_PAIRS or not rollouts or has_pairs_of_step(db, self.run.id, step):
            return
        drawn = self._draw(step, rollouts, checkpoint_step, only_checkpoint=only_checkpoint)
        for opponent in dict.fromkeys(item.opponent for item in drawn):
            chosen = [item for item in drawn if item.opponent is opponent]
            self._store(step, chosen, self._sample(step, chosen, policy_slot), checkpoint_step)

    def _draw(
        self, step: int, rollouts: Sequence[RolloutRow], checkpoint_step: int | None, *, only_checkpoint: bool = False
    ) -> list[_Drawn]:
        """Rollouts of different prompts. Of pairs that only teach, those that ended by themselves come first.

        The brake counts on texts that are alike but for who wrote them (core/sequential_test.py). So where the other text is that
        of another model, which is sampled as it comes, the policy's is not chosen either. The token view shows the first rollouts
        of a step to everybody, so no pair has their texts.
        """
        rng = random.Random(derive_seed(self.config.seed, "live pairs", step))
        hidden = range(min(self.config.token_rows, len(rollouts)), len(rollouts))
        order = rng.sample(hidden, len(hidden))
        stop_ids = self.adapters.backbone.eos_ids
        ended_first = sorted(order, key=lambda row: not rollouts[row][1] or rollouts[row][1][-1] not in stop_ids)
        drawn, used = [], set[int]()
        for i in range(PAIRS_PER_STEP):
            opponent = (
                self.turns[(step * PAIRS_PER_STEP + i) % len(self.turns)] if step else None
            )  # at 0 it is the base
            if opponent is not None:
                is_base = checkpoint_step is None or (opponent is Opponent.BASE and not only_checkpoint)
                opponent = Opponent.BASE if is_base else Opponent.BEST
            unused = (row for row in (ended_first if opponent is None else order) if rollouts[row][0] not in used)
            row = next(unused, None)
            if row is None:
                break
            prompt, tokens = rollouts[row]
            used.add(prompt)
            writer_step = checkpoint_step if opponent is Opponent.BEST else step + 1
            checkpoint = "base" if opponent is Opponent.BASE else self._checkpoint(writer_step)
            drawn.append(_Drawn(prompt, tokens, row, opponent, checkpoint))
        return drawn

    def _sample(self, step: int, drawn: Sequence[_Drawn], policy_slot: str) -> list[list[int]]:
        """The other text of each pair."""
        slot: str | None = policy_slot
        if drawn[0].opponent is not None:
            slot = self.model_cache.load_checkpoint(drawn[0].checkpoint, OPPONENT_SLOT)
        backbone, config = self.adapters.backbone, self.config
        prompt_ids = [backbone.encode_prompt(self.prompts[item.prompt].text) for item in drawn]
        seeds = [self._secret_seed(step, item) for item in drawn]
        with self.adapters.using(slot, merged=slot is not None):
            sampled = sample(
                backbone, prompt_ids, uniforms(seeds, config.max_new_tokens), temperature=config.temperature
            )
        return sampled.tokens

    def _store(
        self, step: int, drawn: Sequence[_Drawn], others: Sequence[list[int]], checkpoint_step: int | None
    ) -> None:
        """Store the pairs whose texts differ, the policy's on a random side, with the features of the texts."""
        db = self.model_cache.db
        for item, other in zip(drawn, others, strict=True):
            if item.tokens == other:
                continue
            policy_is_first = derive_seed(self._secret, "live sides", step, item.prompt) % 2 == 0
            rollout_seed = derive_seed(self.config.seed, "rollout", step, item.row)
            sides = [
                self._completion(item.prompt, item.tokens, self._checkpoint(step), rollout_seed),
                self._completion(item.prompt, other, item.checkpoint, self._secret_seed(step, item)),
            ]
            texts = add_completions(db, sides if policy_is_first else sides[::-1])
            prompt = self.prompts[item.prompt]
            add_features(db, compute_features(self.adapters, [(prompt, text) for text in texts]))
            pair = add_pairs(db, self.run.project_id, [(texts[0].id, texts[1].id, LIVE_REASON)])[0]
            opponent_step = checkpoint_step if item.opponent is Opponent.BEST else None
            policy_side = None if item.opponent is None else Choice.FIRST if policy_is_first else Choice.SECOND
            add_live_pairs(db, [LivePair(pair.id, self.run.id, step, item.opponent, opponent_step, policy_side)])

    def _checkpoint(self, step: int | None) -> str:
        return f"run/{self.run.id}/{step}" if step else "base"

    def _secret_seed(self, step: int, item: _Drawn) -> int:
        """Of the other text, which nobody can compute beforehand."""
        return derive_seed(self._secret, "live pair", self.run.id, step, item.prompt)

    def _completion(self, prompt: int, tokens: list[int], checkpoint: str, seed: int) -> NewCompletion:
        backbone, text = self.adapters.backbone, self.prompts[prompt].text
        decoded = backbone.decode(tokens, after=backbone.encode_prompt(text))
        return NewCompletion(self.prompts[prompt].id, decoded, tuple(tokens), checkpoint, seed)


def let_judge_label(db: Database, run: Run, judge: Judge, step: int) -> None:
    """In place of people: the judge votes on the newest pair of the run, at the rate of `manifest[JUDGE_KEY]`.

    A repeated step changes nothing, because the number of its votes is then right already.
    """
    waiting, settings = unanswered_pairs(db, run.id), run.manifest[JUDGE_KEY]
    wanted = min(step // int(settings["every"]), settings.get("at_most", step))
    if waiting and count_live_pairs(db, run.id) - len(waiting) < wanted:
        pair, noise = get_pair(db, waiting[0]), float(settings["noise"])
        cast_vote(db, judge_vote(judge, pair, noise=noise, seed=int(run.config.get("seed", 0))))
