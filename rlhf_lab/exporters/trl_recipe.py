"""A folder that goes on elsewhere: data, model, reward and a script for one of TRL's trainers, with the settings of a run.

train.py            the script: `python train.py`, or `python train.py 2` for two steps
requirements.txt    the packages that it needs
data/train.jsonl    prompts, or preferences
model/              the base model; of the Hub only its name, in train.py
reward.py, reward_model/, reward_functions.py, function_*.py    the reward of an online algorithm
README.md           how to run it, each setting beside TRL's, and what is not translated
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL
from rlhf_lab.common.chat_format import plain_prompt_with_system, turns_of_prompt, without_system_role
from rlhf_lab.common.checkpoint_index import saved_numbers
from rlhf_lab.common.enums import Source, Strength
from rlhf_lab.common.model_folder import CONFIG_FILE, GENERATION_CONFIG_FILE, end_token_ids, weight_files, weight_index
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import LabelSnapshot, Project, Run
from rlhf_lab.common.text import pluralize
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import LabelError, StoreError
from rlhf_lab.exporters.adapter_zip import RewardModelFiles, reward_model_files
from rlhf_lab.exporters.base_model import base_folder, tokenizer_files
from rlhf_lab.exporters.json_io import portable_name, write_json_lines
from rlhf_lab.exporters.label_export import LabelExportOptions, label_batches, nothing_to_export_message
from rlhf_lab.exporters.output_folder import AtomicOutput, atomic_output
from rlhf_lab.exporters.reward_functions import PROMPT_COLUMN, ExportedFunctions, export_functions
from rlhf_lab.exporters.trl_settings import TRL_VERSION, dpo_settings, online_settings, reward_settings
from rlhf_lab.exporters.trl_templates import RecipeFacts, RewardFacts, readme, reward_script, train_script
from rlhf_lab.rewards.terms import FUNCTIONS_KEY, REWARD_MODEL, TERMS_KEY, read_terms
from rlhf_lab.store.database import Database
from rlhf_lab.store.label_snapshots import comparisons_by_vote, snapshot_annotators, snapshot_labels
from rlhf_lab.store.projects import get_project, prompts
from rlhf_lab.store.reward_models import latest_reward_model, reward_model_of
from rlhf_lab.store.run_metrics import metric_at
from rlhf_lab.store.runs import get_run

MODEL, REWARD_FOLDER = "model", "reward_model"
#: TRL's trainers that learn from labels, by what is trained.
LABEL_TRAINERS = {"reward": "Reward", "dpo": "DPO"}
#: Of a reward model's files: transformers would take config.json, the settings of its training, for that of a model.
NOT_IN_RECIPE = {"README.md", "config.json"}
PACKAGES = ("torch", "transformers", "peft", "accelerate", "datasets")  # in the versions of the lab that exports


def export_run_recipe(
    db: Database, home: Path, run_id: int, out_dir: Path, texts: LabelExportOptions, *, force: bool = False
) -> list[Path]:
    """Write the recipe of a run to OUT; returns the paths of its files.

    texts: whether texts are chats, and whether these have messages of the system; other options are not used.
    Raises StoreError for a run that TRL cannot continue, for missing files and for a failed write; LabelError without labels.
    """
    run = get_run(db, run_id)
    config, project = PolicyConfig.from_dict(run.config), get_project(db, run.project_id)
    dtype = str((run.manifest.get("machine") or {}).get("dtype", "float32"))
    title = f'Run {run.id} ("{run.name}", {config.algorithm})'
    if config.spec.loss == "direct_preference":
        snapshot, counts = _labels_of_run(db, run)
        rows = _preferences(db, project, replace(texts, source=None), only=frozenset(snapshot.vote_ids))
        label_notes = (*_label_notes(db, [snapshot], len(rows)), *_count_notes(db, snapshot, counts))
        settings = dpo_settings(config, dtype)
        return _write(
            out_dir,
            RecipeFacts(title, _model_name(project), project, settings, rows, notes=label_notes),
            force=force,
        )
    if config.is_offline:
        raise StoreError(
            f"Run {run.id} used {config.algorithm}, for which there is no recipe: only for algorithms that sample, and for dpo. "
            "Export a recipe of the labels instead, or the run's whole model."
        )
    script, files, functions, notes = _reward_of(db, home, run, config, project)
    rows = []
    for prompt in prompts(db, project.id, "train"):
        rows.append({"prompt": _prompt(prompt.text, project, texts)})
        if functions.files:
            rows[-1][PROMPT_COLUMN] = prompt.text
    facts = RecipeFacts(
        title,
        _model_name(project),
        project,
        online_settings(config, dtype),
        rows,
        files.facts if files else None,
        functions,
        (*_beta_note(db, run), *notes),
    )
    return _write(out_dir, facts, (script, files), force=force)


def export_label_recipe(
    db: Database, project_id: int, out_dir: Path, texts: LabelExportOptions, *, trainer: str = "reward", force: bool = False
) -> list[Path]:  # fmt: skip
    """Write a recipe that learns from a project's labels; returns the paths of the files.

    trainer: a key of LABEL_TRAINERS; "reward" has the settings of the newest reward model. texts: its source says whose labels.
    Raises LabelError without labels, else StoreError.
    """
    project, row = get_project(db, project_id), latest_reward_model(db, project_id)
    reward = RewardConfig() if row is None else RewardConfig.from_dict(row.config)
    if LABEL_TRAINERS[trainer] == "DPO":
        settings, margin = dpo_settings(PolicyConfig.for_algorithm("dpo"), "float32"), None
    else:
        settings, margin = reward_settings(reward), reward.margin
    annotators = list(texts.annotators) or None
    snapshots = [snapshot_labels(db, project_id, source, annotators)
                 for source in Source if texts.source in (None, source)]  # fmt: skip
    only = frozenset(vote_id for snapshot in snapshots for vote_id in snapshot.vote_ids)
    rows = _preferences(db, project, texts, only=only, margin=margin)
    labels = {None: "All labels, also simulated ones,", Source.SIMULATED: "The simulated labels"}.get(
        texts.source, "The labels"
    )
    title = f'{labels} of project {project.id} ("{project.name}")'
    notes = tuple(_label_notes(db, snapshots, len(rows)))
    return _write(out_dir, RecipeFacts(title, _model_name(project), project, settings, rows, notes=notes), force=force)


def _label_notes(db: Database, snapshots: Sequence[LabelSnapshot], rows: int) -> Iterator[str]:
    """What the lab's training does with the labels, and TRL's trainers cannot. rows: of the data."""
    vote_ids = [vote_id for snapshot in snapshots for vote_id in snapshot.vote_ids]
    ties = sum(label.tie for label in comparisons_by_vote(db, vote_ids).values())
    changed = len(vote_ids) - ties - rows
    reduced = sum(weight < 1.0 for snapshot in snapshots for weight in snapshot.weights)
    if ties:
        yield f"{pluralize(ties, 'tie')} left out: TRL's trainers have none."
    if changed:
        yield f"{pluralize(changed, 'label')} left out that were taken back, replaced or erased since the training began."
    if reduced:
        yield (
            f"{pluralize(reduced, 'label')} (ties included) with a reduced weight in the lab, of people below the bound on gold "
            "pairs: TRL's trainers give all labels the same weight."
        )


def _count_notes(db: Database, snapshot: LabelSnapshot, counts: dict[str, int]) -> Iterator[str]:
    """counts: how often the labels of a person count, by name."""
    repeated = sum(counts.get(name, 1) > 1 for name in snapshot_annotators(db, snapshot))
    if repeated:
        yield f"The labels of {pluralize(repeated, 'annotator')} count several times in the lab, and once each here."


def _labels_of_run(db: Database, run: Run) -> tuple[LabelSnapshot, dict[str, int]]:
    """The labels that a run learned from, and how often those of a person count, as the engine prepares them."""
    row = reward_model_of(db, run.reward_model_id)
    if row is None:
        return LabelSnapshot.from_record(run.manifest["labels"]), {}
    return row.snapshot, row.report.get("weights") or {}


def _preferences(
    db: Database, project: Project, texts: LabelExportOptions, *, only: frozenset[int], margin: float | None = None
) -> list[dict[str, Any]]:  # fmt: skip
    """prompt, chosen, rejected. only: ids of votes. margin: for a column with so much per level of the label's strength (0 to 2).

    Raises LabelError if there are none.
    """
    options = replace(texts, layout="training", gold=True)
    rows = []
    for row in (row for batch in label_batches(db, project, options, only=only) for row in batch):
        prompt = row["prompt"] if options.messages else plain_prompt_with_system(row["prompt"], project.system_prompt)
        rows.append({"prompt": prompt, "chosen": row["chosen"], "rejected": row["rejected"]})
        if margin is not None:
            rows[-1]["margin"] = margin * Strength(row["strength"]).level if row["strength"] else 0.0
    if not rows:
        raise LabelError(nothing_to_export_message(db, project.id, options))
    return rows


def _prompt(text: str, project: Project, texts: LabelExportOptions) -> Any:
    """A stored prompt as the model reads it, with the system prompt."""
    if not texts.messages:
        return plain_prompt_with_system(text, project.system_prompt)
    turns = turns_of_prompt(text, project.system_prompt)
    return turns if texts.system_role else without_system_role(turns)


def _reward_of(
    db: Database, home: Path, run: Run, config: PolicyConfig, project: Project
) -> tuple[str, RewardModelFiles | None, ExportedFunctions, list[str]]:
    """reward.py of an online run, the files of its reward model, its functions, and notes.

    Raises StoreError if there is nothing that could be its reward.
    """
    terms = read_terms(run.manifest.get(TERMS_KEY) or [])
    digests = run.manifest.get(FUNCTIONS_KEY) or {}
    functions = export_functions([term for term in terms if term.name != REWARD_MODEL], home, digests)
    if run.reward_model_id is None and not functions.files:
        why = functions.notes or [
            f"Run {run.id} learned its reward while people labelled, and that is not stored as a reward model."
            if config.live
            else f"Run {run.id} was not trained with a reward model or reward functions."
        ]
        raise StoreError(
            f"{' '.join(why)} So there is no reward to export. Choose another run, or export a recipe of the labels."
        )
    weight = next((term.weight for term in terms if term.name == REWARD_MODEL), 0.0 if terms else 1.0)
    model, files = _model_name(project), None
    if run.reward_model_id is not None:
        files = reward_model_files(db, home, run.reward_model_id, model)
    saved = saved_numbers(run_folder(home, run.id)).get("score_unit")
    unit = (float(saved[0]), float(saved[1])) if saved else None
    reward = RewardFacts(
        project, model, files.facts if files else None, REWARD_FOLDER, weight, unit, bool(functions.files),
        end_token_ids(base_folder(project)),
    )  # fmt: skip
    notes = list(functions.notes)
    if config.kl_budget is not None and unit is None:
        notes.append(
            "The run measures the mean and the standard deviation of the base's rewards before its first step, and none is "
            "saved: set MEAN and SD in reward.py, or let the run make a checkpoint and export again."
        )
    return reward_script(reward, config), files, functions, [*notes, *_model_notes(files)]


def _model_notes(files: RewardModelFiles | None) -> Iterator[str]:
    if files is None:
        return
    if "correction" in files.facts.head_config:
        yield (
            "In the lab the scores ignore some attributes of the texts; those of reward.py contain them (`correction` in "
            f"{REWARD_FOLDER}/reward_head.json)."
        )
    if files.facts.unmet:
        yield (
            "The reward model is no `AutoModelForSequenceClassification`: that needs "
            f"{' and '.join(files.facts.unmet)}. reward.py computes its score from adapter and head instead."
        )


def _beta_note(db: Database, run: Run) -> Iterator[str]:
    last = metric_at(db, run.id, run.step, "objective/kl_coef")
    if last is not None and run.config.get("kl_budget") is not None:
        yield f"At its last step ({run.step}) the run's beta was {last:.3g}; train.py has the one of its settings."


def _model_name(project: Project) -> str:
    """Of the model in train.py: the folder of the recipe, or an id of the Hub. Raises StoreError if its folder is gone."""
    if portable_name(project.model) != project.model:  # a path
        base_folder(project)
    return MODEL if project.model == EMBEDDED_MODEL or Path(project.model).is_dir() else project.model


def _write(
    out_dir: Path, facts: RecipeFacts, reward: tuple[str, RewardModelFiles | None] | None = None, *, force: bool
) -> list[Path]:
    """reward: reward.py, and the files of its reward model."""
    with atomic_output(out_dir, force=force) as output:
        output.add("README.md").write_text(readme(facts), encoding="utf-8")
        output.add("train.py").write_text(train_script(facts), encoding="utf-8")
        output.add("requirements.txt").write_text("\n".join(_requirements()) + "\n", encoding="utf-8")
        write_json_lines(output.add("data/train.jsonl"), facts.rows)
        if facts.model == MODEL:
            _copy_model(output, base_folder(facts.project))
        if reward is not None:
            script, files = reward
            output.add("reward.py").write_text(script, encoding="utf-8")
            for name, source in facts.functions.files.items():
                output.add(name).write_text(source, encoding="utf-8")
            if files is not None:
                _copy_reward_model(output, files)
    return output.paths


def _copy_reward_model(output: AtomicOutput, files: RewardModelFiles) -> None:
    for name in sorted({*files.names, *files.overrides} - NOT_IN_RECIPE):
        content, path = files.overrides.get(name), output.add(f"{REWARD_FOLDER}/{name}")
        if content is None:
            shutil.copyfile(files.folder / name, path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def _requirements() -> Iterable[str]:
    yield f"trl=={TRL_VERSION}"
    for name in PACKAGES:
        yield f"{name}=={version(name).partition('+')[0]}"  # without the name of a build, such as +cpu


def _copy_model(output: AtomicOutput, base: Path) -> None:
    names = [CONFIG_FILE, GENERATION_CONFIG_FILE, weight_index(base), *weight_files(str(base), base)]
    paths = [base / name for name in names if name and (base / name).is_file()]
    for path in (*paths, *tokenizer_files(base)):
        shutil.copyfile(path, output.add(f"{MODEL}/{path.name}"))
