"""What a run trains: its trainer, with the prompts, the reward, the labels and the judge that the store and its manifest name."""

import json
from collections.abc import Iterable, Sequence

from rlhf_lab.common.paths import ptx_texts_file
from rlhf_lab.common.progress import ProgressCallback
from rlhf_lab.common.records import LabelSnapshot, Prompt, Run
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.embedded_model.corpus import generate_documents
from rlhf_lab.engine.label_preparation import PreparedLabels, label_note, prepare_labels
from rlhf_lab.engine.live_run import LiveHeads, LivePairs
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.prompt_filter import filter_prompts
from rlhf_lab.engine.text_features import FEATURES
from rlhf_lab.errors import TrainingError
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.rewards.evaluator import FunctionTerms
from rlhf_lab.rewards.terms import REWARD_MODEL, TERMS_KEY, read_terms
from rlhf_lab.store.projects import get_project, prompts
from rlhf_lab.store.reward_models import get_reward_model
from rlhf_lab.store.runs import (
    add_note,
    events,
)
from rlhf_lab.training.offline.trainer import OfflineTrainer
from rlhf_lab.training.policy.live_reward import LiveReward
from rlhf_lab.training.policy.rollout import Scorer
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer
from rlhf_lab.training.policy.weighted_reward import WeightedReward

#: In the manifest: the ids of the project's prompts at the start of the run, as ranges (first, last).
PROMPTS_KEY = "prompts"
PTX_CORPUS_TEXTS = 1024  # texts of the embedded model's corpus, for a run without its own pretraining texts
POLICY_SLOT = "policy"


class RunTask:
    """The task of one run. heads: of a live run; pairs: of a live run or a brake."""

    def __init__(self, model_cache: ModelCache, run: Run, config: PolicyConfig) -> None:
        self.model_cache, self.run, self.config = model_cache, run, config
        self.heads: LiveHeads | None = None
        self.pairs: LivePairs | None = None
        self._functions: FunctionTerms | None = None  # the functions among the reward terms
        self.prompt_ids: list[list[int]] = run.manifest.get(PROMPTS_KEY, [])

    def close(self) -> None:
        """End the process of the reward functions."""
        if self._functions is not None:
            self._functions.close()

    def make_trainer(self, on_progress: ProgressCallback) -> PolicyTrainer:
        db, project = self.model_cache.db, get_project(self.model_cache.db, self.run.project_id)
        machine = self.run.manifest.get("machine") or {}  # as of the run's last training; empty at its start
        backbone, adapters = self.model_cache.load_project(project, recorded_dtype=machine.get("dtype"))
        judge = self.run.manifest.get("judge")
        train_prompts, eval_prompts = (
            filter_prompts(backbone, split, self.config.max_new_tokens) for split in self._prompts()
        )
        labels = self._labels(backbone) if self.config.spec.learns_from == "labels" else PreparedLabels([], 0, "")
        live = self._make_live_parts(backbone, adapters, train_prompts.prompts)
        task = PolicyTask(
            prompts=[prompt.text for prompt in train_prompts.prompts],
            scorer=self.scorer(backbone, self.run.reward_model_id) if live is None else live.model,
            sample_prompts=[prompt.text for prompt in eval_prompts.prompts][: self.config.sample_count],
            eval_prompts=[prompt.text for prompt in eval_prompts.prompts],
            gold=load_judge(judge).score if judge else None,
            ptx_texts=self._pretraining_texts() if self.config.ptx_coef > 0 else (),
            labels=labels.labels,
            live=live,
        )
        trainer = (OfflineTrainer if self.config.is_offline else PolicyTrainer)(
            backbone, adapters, task, self.config, adapter=POLICY_SLOT, on_progress=on_progress,
            distributed=self.model_cache.distributed,
        )  # fmt: skip
        if self.model_cache.distributed.is_main_process and not events(db, self.run.id):
            indistinguishable = trainer.indistinguishable if isinstance(trainer, OfflineTrainer) else 0
            for message in (train_prompts.message, label_note(labels.truncated_count, indistinguishable)):
                if message:
                    add_note(db, self.run.id, message, 0)
        return trainer

    def _prompts(self) -> tuple[list[Prompt], list[Prompt]]:
        """The train and eval prompts at the start of the run. An import, or its undo, may have changed the project's since."""
        db, project_id = self.model_cache.db, self.run.project_id
        if not self.prompt_ids:
            current = prompts(db, project_id, "train"), prompts(db, project_id, "eval")
            self.prompt_ids = _id_ranges(prompt.id for split in current for prompt in split)
            return current
        ids = {i for first, last in self.prompt_ids for i in range(first, last + 1)}
        train, held_out = (prompts(db, project_id, split, include_labels_only=True) for split in ("train", "eval"))
        return [prompt for prompt in train if prompt.id in ids], [prompt for prompt in held_out if prompt.id in ids]

    def _make_live_parts(
        self, backbone: Backbone, adapters: Adapters, train_prompts: Sequence[Prompt]
    ) -> LiveReward | None:
        """What a live run and a brake need; returns the reward of a live run."""
        if self.config.live or self.config.brake_every:
            self.pairs = LivePairs(self.model_cache, adapters, self.run, self.config, train_prompts)
        if not self.config.live:
            return None
        self.heads = LiveHeads(self.model_cache, self.run, self.config)
        return LiveReward(backbone, adapters, FEATURES)

    def _labels(self, backbone: Backbone) -> PreparedLabels:
        """The labels of the run's reward model, with the same annotator weights; without a reward model the run's own labels."""
        db, weights = self.model_cache.db, dict[str, int]()
        if self.run.reward_model_id is None:
            snapshot = LabelSnapshot.from_record(self.run.manifest["labels"])
        else:
            row = get_reward_model(db, self.run.reward_model_id)
            snapshot, weights = row.snapshot, row.report.get("weights") or {}
        return prepare_labels(db, snapshot, backbone, weights)

    def scorer(self, backbone: Backbone, reward_model_id: int | None) -> Scorer | None:
        """The reward model, or the weighted sum of the run's reward terms; None if a run of dpo or sft has neither."""
        model = None if reward_model_id is None else self.model_cache.reward_model(reward_model_id, "reward")
        terms = read_terms(self.run.manifest.get(TERMS_KEY) or [])
        if not terms:
            return model
        terms.sort(key=lambda term: term.name != REWARD_MODEL)
        if self._functions is None:
            self._functions = FunctionTerms(
                [term for term in terms if term.name != REWARD_MODEL], self.model_cache.home
            )
        return WeightedReward(backbone, model, self._functions, {term.label: term.weight for term in terms})

    def _pretraining_texts(self) -> list[str]:
        """The run's own texts, or some of the embedded model's corpus. Raises TrainingError if the run's own are missing."""
        if "ptx_texts" not in self.run.manifest:
            return generate_documents(self.config.seed, PTX_CORPUS_TEXTS, 0)
        path = ptx_texts_file(self.model_cache.home, self.run.id)
        try:
            texts: list[str] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TrainingError(
                f"the pretraining texts of run {self.run.id} cannot be read ({error}). Restore {path}, or start a "
                "new run."
            ) from error
        return texts


def _id_ranges(ids: Iterable[int]) -> list[list[int]]:
    """[first, last] of each range of consecutive ids."""
    ranges: list[list[int]] = []
    for i in sorted(ids):
        if ranges and i == ranges[-1][1] + 1:
            ranges[-1][1] = i
        else:
            ranges.append([i, i])
    return ranges
