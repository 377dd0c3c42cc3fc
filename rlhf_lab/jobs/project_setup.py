"""Creating, opening and deleting projects, with their prompts, shipped pairs and files. No model is loaded."""

import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_lab.common.bundled_assets import (
    EMBEDDED_MODEL,
    PROMPT_SETS,
    complete_splits,
    embedded_model_folder,
    shipped_pairs,
    shipped_prompts,
    train_eval_split,
    weights_digest,
)
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import NewCompletion, Project
from rlhf_lab.errors import ConfigError, StoreError
from rlhf_lab.jobs.model_inspection import ModelFacts, find_cached_model, inspect_model_folder
from rlhf_lab.jobs.prompt_files import read_prompt_file
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import (
    add_completions,
    add_pairs,
    create_project,
    current_project,
    delete_project,
    get_project,
    open_project,
    projects,
    prompts,
)

MAX_PROJECT_NAME_CHARS = 80
_FIRST_PROJECT_LOCK = threading.Lock()


def new_project(
    db: Database,
    *,
    model: str = EMBEDDED_MODEL,
    prompt_set: str = "tales",
    prompts_file: Path | None = None,
    custom_prompts: Sequence[str] | Mapping[str, str] = (),
    seed: int = 0,
    name: str = "",
) -> Project:
    """Create a project on a bundled prompt set, a file of prompts, or custom prompts (then prompt_set is their name).

    A mapping of custom prompts gives the split of each; "" if it has none yet.

    A name that another project has gets a number. Projects of the embedded model start with the shipped pairs of their prompt
    set, so that labelling can start at once. Raises ConfigError; ModelError for a folder without a usable model.
    """
    if prompts_file is not None:
        custom_prompts, prompt_set = read_prompt_file(prompts_file), prompts_file.name
    if isinstance(custom_prompts, Mapping) and custom_prompts:
        splits = complete_splits(custom_prompts)
    else:
        splits = train_eval_split(list(custom_prompts) or shipped_prompts(prompt_set))
    digest = _model_digest(model)
    name = _unused_name(db, " ".join(name.split())[:MAX_PROJECT_NAME_CHARS] or _default_name(model, prompt_set))
    project = create_project(db, name, model, digest, prompt_set, seed, splits)
    if model == EMBEDDED_MODEL and not custom_prompts:
        _add_shipped_pairs(db, project, digest)
    return project


def open_project_on_model(db: Database, facts: ModelFacts) -> Project:
    """Open the project on a model that was opened last, or a new one."""
    existing = [project for project in projects(db) if project.model == facts.name]
    if not existing:
        return new_project(db, model=facts.name)
    latest = max(existing, key=lambda project: (project.opened_at or project.created_at, project.id))
    open_project(db, latest.id)
    return get_project(db, latest.id)


def copy_project(db: Database, project: Project) -> Project:
    """Create a project on the same model, prompts and seed, without labels."""
    custom_prompts = _all_prompts(db, project)
    if project.prompt_set in PROMPT_SETS and custom_prompts == shipped_prompts(project.prompt_set):
        custom_prompts = []
    return new_project(
        db,
        model=project.model,
        prompt_set=project.prompt_set,
        custom_prompts=custom_prompts,
        seed=project.seed,
        name=project.name,
    )


def remove_project(db: Database, home: Path, project_id: int) -> Project:
    """Delete a project with its labels, reward models and runs, rows and files; returns the deleted project.

    Raises StoreError for the open project, while a job or run of it is active, and if files cannot be deleted.
    """
    project, removed = get_project(db, project_id), delete_project(db, project_id)
    folders = [
        *(run_folder(home, run_id) for run_id in removed.run_ids),
        *(home / path for path in removed.reward_model_paths),
    ]
    folders = [folder for folder in folders if home.resolve() in folder.resolve().parents]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    if leftover_folders := [str(folder) for folder in folders if folder.exists()]:
        raise StoreError(
            f'"{project.name}" is deleted, but some files of it are not. Delete by hand: {", ".join(leftover_folders)}'
        )
    return project


def _all_prompts(db: Database, project: Project) -> list[str]:
    """All its prompts in the order they were given: those for evaluation last."""
    return [prompt.text for split_name in ("train", "eval") for prompt in prompts(db, project.id, split_name)]


def _model_digest(model: str) -> str:
    """The hash of the weights; "" for a Hub id that is not downloaded. Raises ModelError for a folder without a model."""
    if model == EMBEDDED_MODEL:
        return weights_digest(embedded_model_folder())
    if Path(model).is_dir():
        inspect_model_folder(model, Path(model))
        return weights_digest(Path(model))
    cached_facts = find_cached_model(model)
    return weights_digest(cached_facts.folder) if cached_facts is not None and cached_facts.folder is not None else ""


def _add_shipped_pairs(db: Database, project: Project, digest: str) -> None:
    model_digest, pairs = shipped_pairs()
    matching_pairs = [pair for pair in pairs if pair.prompt_set == project.prompt_set]
    if model_digest != digest:
        return
    prompt_ids = {prompt.text: prompt.id for prompt in prompts(db, project.id, "train")}
    completions_by_side = [
        [
            NewCompletion(prompt_ids[pair.prompt], pair.texts[side], pair.token_ids[side], "shipped", pair.seeds[side])
            for pair in matching_pairs
            if pair.prompt in prompt_ids
        ]
        for side in (0, 1)
    ]
    firsts, seconds = add_completions(db, completions_by_side[0]), add_completions(db, completions_by_side[1])
    add_pairs(db, project.id, [(a.id, b.id, "shipped") for a, b in zip(firsts, seconds, strict=True)])


def pick_project(db: Database, project_id: int | None) -> Project:
    """The project of this id, or the one opened last, or a first one on the embedded model. Raises ConfigError."""
    if project_id is None:
        return current_project(db) or _first_project(db)
    existing = projects(db)
    matches = [project for project in existing if project.id == project_id]
    if not matches:
        existing_names = ", ".join(f"{project.id} ({project.name})" for project in existing) or "none yet"
        raise ConfigError(f"there is no project {project_id}; there are: {existing_names}.")
    return matches[0]


def _first_project(db: Database) -> Project:
    """Created once, even if several threads of a page need it at the same time."""
    with _FIRST_PROJECT_LOCK:
        return current_project(db) or new_project(db)


def _unused_name(db: Database, name: str) -> str:
    """The name, or "Tales 2" where there is a "Tales"; after that "Tales 3"."""
    used_names, number, candidate = {project.name for project in projects(db)}, 1, name
    while candidate in used_names:
        number += 1
        candidate = f"{re.sub(r' [0-9]+$', '', name)[: MAX_PROJECT_NAME_CHARS - 5]} {number}"
    return candidate


def _default_name(model: str, prompt_set: str) -> str:
    return prompt_set.capitalize() if model == EMBEDDED_MODEL else f"{Path(model).name}: {prompt_set}"
