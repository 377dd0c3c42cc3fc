"""Projects made ready: prompts split, shipped pairs put in place. No model is loaded for it."""

import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from rlhf_lab.assets import (
    EMBEDDED,
    PROMPT_SETS,
    embedded_folder,
    shipped_pairs,
    shipped_prompts,
    split,
    weights_digest,
)
from rlhf_lab.errors import ConfigError, StoreError
from rlhf_lab.home import run_folder
from rlhf_lab.jobs.examine import ModelFacts, cached, examine_folder
from rlhf_lab.jobs.promptfile import read_prompt_file
from rlhf_lab.records import NewCompletion, Project
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import (
    add_completions,
    add_pairs,
    create_project,
    current_project,
    get_project,
    open_project,
    projects,
    prompts,
)
from rlhf_lab.store.removal import delete_project

MAX_NAME = 80
_MAKING_THE_FIRST = threading.Lock()


def new_project(
    db: Database, *, model: str = EMBEDDED, prompt_set: str = "tales", prompts_file: Path | None = None,
    own_prompts: Sequence[str] = (), seed: int = 0, name: str = "",
) -> Project:  # fmt: skip
    """A project on a model and a prompt set of ours, on prompts from a file, or on own prompts, which prompt_set names.

    A name that another project has gets a number behind it.
    The embedded model's projects begin with the shipped pairs of their set, so that labelling can start at once.
    Raises ConfigError; ModelError for a folder that holds no model that can be used.
    """
    if prompts_file is not None:
        own_prompts, prompt_set = read_prompt_file(prompts_file), prompts_file.name
    texts = list(own_prompts) or shipped_prompts(prompt_set)
    digest = _digest(model)
    name = _free(db, " ".join(name.split())[:MAX_NAME] or _name(model, prompt_set))
    project = create_project(db, name, model, digest, prompt_set, seed, split(texts))
    if model == EMBEDDED and not own_prompts:
        _add_shipped(db, project, digest)
    return project


def open_model(db: Database, facts: ModelFacts) -> Project:
    """The project on a model that was opened last, opened again; a new one where there is none yet."""
    known = [project for project in projects(db) if project.model == facts.name]
    if not known:
        return new_project(db, model=facts.name)
    last = max(known, key=lambda project: (project.opened_at or project.created_at, project.id))
    open_project(db, last.id)
    return get_project(db, last.id)


def copy_project(db: Database, project: Project) -> Project:
    """A new project on the same model, prompts and seed, without labels."""
    own = _prompts_of(db, project)
    if project.prompt_set in PROMPT_SETS and own == shipped_prompts(project.prompt_set):
        own = []
    return new_project(
        db, model=project.model, prompt_set=project.prompt_set, own_prompts=own, seed=project.seed, name=project.name
    )


def remove_project(db: Database, home: Path, project_id: int) -> Project:
    """Delete a project with its labels, reward models and runs, rows and files; returns what it was.

    Raises StoreError for the one that is open, while something of it goes on, and if files cannot be deleted.
    """
    project, left = get_project(db, project_id), delete_project(db, project_id)
    folders = [*(run_folder(home, run_id) for run_id in left.runs), *(home / path for path in left.reward_models)]
    folders = [folder for folder in folders if home.resolve() in folder.resolve().parents]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    if still := [str(folder) for folder in folders if folder.exists()]:
        raise StoreError(
            f'"{project.name}" is deleted, but some files of it are not. Delete by hand: {", ".join(still)}'
        )
    return project


def _prompts_of(db: Database, project: Project) -> list[str]:
    """All its prompts in the order they were given: the evaluation's stood last."""
    return [prompt.text for part in ("train", "eval") for prompt in prompts(db, project.id, part)]


def _digest(model: str) -> str:
    """The hash of the weights; empty for a Hub id that is not here yet. Raises ModelError for a folder without a model."""
    if model == EMBEDDED:
        return weights_digest(embedded_folder())
    if Path(model).is_dir():
        examine_folder(model, Path(model))
        return weights_digest(Path(model))
    held = cached(model)
    return weights_digest(held.folder) if held is not None and held.folder is not None else ""


def _add_shipped(db: Database, project: Project, digest: str) -> None:
    made_with, pairs = shipped_pairs()
    mine = [pair for pair in pairs if pair.prompt_set == project.prompt_set]
    if made_with != digest:
        return
    known = {prompt.text: prompt.id for prompt in prompts(db, project.id, "train")}
    new = [
        [
            NewCompletion(known[pair.prompt], pair.texts[side], pair.token_ids[side], "shipped", pair.seeds[side])
            for pair in mine
            if pair.prompt in known
        ]
        for side in (0, 1)
    ]
    firsts, seconds = add_completions(db, new[0]), add_completions(db, new[1])
    add_pairs(db, project.id, [(a.id, b.id, "shipped") for a, b in zip(firsts, seconds, strict=True)])


def pick_project(db: Database, project_id: int | None) -> Project:
    """The named project, or the one opened last; a first one on the embedded model where there is none. ConfigError."""
    if project_id is None:
        return current_project(db) or _first_project(db)
    known = projects(db)
    found = [project for project in known if project.id == project_id]
    if not found:
        there = ", ".join(f"{project.id} ({project.name})" for project in known) or "none yet"
        raise ConfigError(f"there is no project {project_id}; there are: {there}.")
    return found[0]


def _first_project(db: Database) -> Project:
    """Made once, however many threads of a page look into a brand-new home at the same moment."""
    with _MAKING_THE_FIRST:
        return current_project(db) or new_project(db)


def _free(db: Database, name: str) -> str:
    """The name, or "Tales 2" where there is a "Tales"; after that "Tales 3"."""
    taken, number, free = {project.name for project in projects(db)}, 1, name
    while free in taken:
        number += 1
        free = f"{re.sub(r' [0-9]+$', '', name)[: MAX_NAME - 5]} {number}"
    return free


def _name(model: str, prompt_set: str) -> str:
    return prompt_set.capitalize() if model == EMBEDDED else f"{Path(model).name}: {prompt_set}"
