"""Projects made ready: prompts split, shipped pairs put in place. No model is loaded for it."""

from pathlib import Path

from rlhf_lab.assets import (
    EMBEDDED,
    embedded_folder,
    read_prompts,
    shipped_pairs,
    shipped_prompts,
    split,
    weights_digest,
)
from rlhf_lab.errors import ConfigError
from rlhf_lab.records import NewCompletion, Project
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import add_completions, add_pairs, create_project, current_project, projects, prompts


def new_project(
    db: Database, *, model: str = EMBEDDED, prompt_set: str = "tales", prompts_file: Path | None = None, seed: int = 0,
    name: str = "",
) -> Project:  # fmt: skip
    """A project on a model and a prompt set of ours, or on prompts from a file.

    The embedded model's projects begin with the shipped pairs of their set, so that labelling can start at once.
    Raises ConfigError or ModelError.
    """
    if prompts_file is not None:
        texts, prompt_set = read_prompts(prompts_file), prompts_file.name
    else:
        texts = shipped_prompts(prompt_set)
    digest = weights_digest(embedded_folder()) if model == EMBEDDED else _folder_digest(model)
    project = create_project(db, name or _name(model, prompt_set), model, digest, prompt_set, seed, split(texts))
    if model == EMBEDDED and prompts_file is None:
        _add_shipped(db, project, digest)
    return project


def _folder_digest(model: str) -> str:
    """The hash of a local model folder; empty for a Hub id, whose weights are checked when they are there."""
    return weights_digest(Path(model)) if Path(model).is_dir() else ""


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
        return current_project(db) or new_project(db)
    known = projects(db)
    found = [project for project in known if project.id == project_id]
    if not found:
        there = ", ".join(f"{project.id} ({project.name})" for project in known) or "none yet"
        raise ConfigError(f"there is no project {project_id}; there are: {there}.")
    return found[0]


def _name(model: str, prompt_set: str) -> str:
    return prompt_set.capitalize() if model == EMBEDDED else f"{Path(model).name}: {prompt_set}"
