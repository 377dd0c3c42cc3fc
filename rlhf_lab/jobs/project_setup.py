"""Creating, opening and deleting projects, with their prompts, shipped pairs and files. No model is loaded."""

import json
import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_lab.common.bundled_assets import (
    EMBEDDED_MODEL,
    PROMPT_SETS,
    SHIPPED_PAIRS_TEMPERATURE,
    complete_splits,
    shipped_pairs,
    shipped_prompts,
    train_eval_split,
    weights_digest,
)
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import DEFAULT_MAX_NEW_TOKENS, NO_CHAT_SETTINGS, ChatSettings, NewCompletion, Project
from rlhf_lab.common.seeding import secret_seed
from rlhf_lab.common.text import parse_foreign_json, pluralize
from rlhf_lab.config.labelling import NEW_PROJECT_LABELLING, LabellingConfig
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError, StoreError
from rlhf_lab.jobs.model_inspection import ModelFacts, inspect_model
from rlhf_lab.jobs.prompt_files import read_prompt_file
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import (
    add_completions,
    add_pairs,
    count_pairs,
    create_project,
    current_project,
    delete_project,
    get_labelling_config,
    get_project,
    open_project,
    projects,
    prompts,
    set_max_new_tokens,
    set_temperature,
)

MAX_PROJECT_NAME_CHARS = 80
_FIRST_PROJECT_LOCK = threading.Lock()
_NAME_LOCK = threading.Lock()  # no two projects get the same name


def new_project(  # noqa: PLR0913  one argument for each choice of the form
    db: Database,
    *,
    model: str = EMBEDDED_MODEL,
    prompt_set: str | Path | None = None,
    custom_prompts: Sequence[str] | Mapping[str, str] = (),
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    seed: int = 0,
    name: str = "",
    chat: ChatSettings = NO_CHAT_SETTINGS,
    labelling: LabellingConfig = NEW_PROJECT_LABELLING,
    opens: bool = True,
) -> Project:
    """Create a project on a bundled prompt set, a file of prompts (a Path), or custom prompts (then prompt_set is their name).

    Without a prompt set or a temperature, the project gets those that suit the model; without max_new_tokens its responses have
    at most 64 tokens. A mapping of custom prompts gives the split of each prompt, "" if it has none yet.
    chat: the system prompt and the arguments of the chat template, which take precedence
    over those that suit the model. opens: whether every browser shows it from now on; the first of a home is always shown.

    If another project has the name, a number is added. Projects of the embedded model start with the shipped pairs of their
    prompt set, which were sampled at temperature 1 with at most 64 tokens, so that labelling can start at once.
    Raises ConfigError, and ModelError for a model that is not usable.
    """
    facts = inspect_model(model)
    chat = completed_chat_settings(facts, chat)
    temperature = facts.temperature if temperature is None else checked_temperature(temperature)
    max_new_tokens = DEFAULT_MAX_NEW_TOKENS if max_new_tokens is None else checked_max_new_tokens(max_new_tokens)
    if isinstance(prompt_set, Path):
        custom_prompts, prompt_set = read_prompt_file(prompt_set), prompt_set.name
    elif prompt_set is None:
        prompt_set = facts.prompt_set
    if isinstance(custom_prompts, Mapping) and custom_prompts:
        splits = complete_splits(custom_prompts)
    else:
        splits = train_eval_split(list(custom_prompts) or shipped_prompts(prompt_set))
    digest = "" if facts.folder is None else weights_digest(facts.folder)  # a Hub model that is not here yet has none
    name = " ".join(name.split())[:MAX_PROJECT_NAME_CHARS] or _default_name(model, prompt_set)
    with _NAME_LOCK:
        project = create_project(
            db, _unused_name(db, name), model, digest, prompt_set, seed, splits, chat, opens=opens, temperature=temperature,
            max_new_tokens=max_new_tokens, labelling=labelling,
        )  # fmt: skip
    sampling = (temperature, max_new_tokens, chat.system_prompt)
    is_as_shipped = sampling == (SHIPPED_PAIRS_TEMPERATURE, DEFAULT_MAX_NEW_TOKENS, "")
    if model == EMBEDDED_MODEL and not custom_prompts and is_as_shipped:
        _add_shipped_pairs(db, project, digest)
    return project


def completed_chat_settings(facts: ModelFacts, chat: ChatSettings) -> ChatSettings:
    """The chat settings of a project on a model. Raises ConfigError for an argument that its chat template does not read."""
    unread = [name for name in chat.template_arguments if name not in facts.chat_template]
    if unread:
        problem = f"does not mention {unread[0]}" if facts.chat_template else "is missing"
        raise ConfigError(
            f"The chat template of {facts.name} {problem}, so this template argument has no effect. Leave it out."
        )
    return ChatSettings(chat.system_prompt.strip(), facts.template_arguments | dict(chat.template_arguments))


def parse_template_arguments(text: str) -> dict[str, Any]:
    """Arguments of a chat template from JSON such as {"enable_thinking": true}; "" for none. Raises ConfigError."""
    try:
        arguments = parse_foreign_json(text) if text.strip() else {}
        json.dumps(arguments, allow_nan=False)  # Python reads NaN and infinities, which JSON and templates do not have
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ConfigError(
            f'The template arguments {text.strip()[:60]!r} are not a JSON object. Example: {{"enable_thinking": true}}.'
        )
    return arguments


def change_temperature(db: Database, project_id: int, temperature: float) -> str:
    """Sample the project's next texts at another temperature; returns a message for the person.

    Raises ConfigError for a value out of range, StoreError for an unknown project.
    """
    previous = get_project(db, project_id).temperature
    set_temperature(db, project_id, checked_temperature(temperature))
    pair_count = count_pairs(db, project_id)
    if temperature == previous or not pair_count:
        return f"The project's texts are sampled at temperature {temperature:g}."
    return (
        f"New texts are sampled at temperature {temperature:g}. {pluralize(pair_count, 'pair')} written at "
        f"{previous:g} are kept, and reward models are trained on both. To separate them, create a new project."
    )


def change_max_new_tokens(db: Database, project_id: int, max_new_tokens: int) -> str:
    """Sample the project's next texts with at most this many tokens; returns a message for the person.

    Raises ConfigError for a value out of range, StoreError for an unknown project.
    """
    previous = get_project(db, project_id).max_new_tokens
    set_max_new_tokens(db, project_id, checked_max_new_tokens(max_new_tokens))
    pair_count = count_pairs(db, project_id)
    if max_new_tokens == previous or not pair_count:
        return f"The project's texts have at most {pluralize(max_new_tokens, 'token')}."
    return (
        f"New texts have at most {pluralize(max_new_tokens, 'token')}. {pluralize(pair_count, 'pair')} written with at most "
        f"{previous} are kept."
    )


def checked_temperature(value: float) -> float:
    """The temperature, if it is in the range of `PolicyConfig.temperature`. Raises ConfigError."""
    return PolicyConfig(temperature=value).temperature


def checked_max_new_tokens(value: int) -> int:
    """The length, if it is in the range of `PolicyConfig.max_new_tokens`. Raises ConfigError."""
    return PolicyConfig(max_new_tokens=value).max_new_tokens


def open_project_on_model(
    db: Database, facts: ModelFacts, chat: ChatSettings | None = None, prompt_set: str | Path | None = None
) -> Project:
    """Open the most recently opened project on a model, or create one on the prompts that suit the model.

    chat, prompt_set: open only a project with these settings. Raises ConfigError if they do not suit the model.
    """
    existing = projects_on_model(db, facts, chat, prompt_set)
    if not existing:
        return new_project(
            db, model=facts.name, prompt_set=prompt_set, chat=chat or NO_CHAT_SETTINGS, seed=secret_seed()
        )
    latest = max(existing, key=lambda project: (_opened_at(project), project.id))
    open_project(db, latest.id)
    return get_project(db, latest.id)


def _opened_at(project: Project) -> float:
    return project.created_at if project.opened_at is None else project.opened_at


def projects_on_model(
    db: Database, facts: ModelFacts, chat: ChatSettings | None = None, prompt_set: str | Path | None = None
) -> list[Project]:
    """The projects that `open_project_on_model` chooses from."""
    existing = [project for project in projects(db) if project.model == facts.name]
    if chat is not None:
        completed = completed_chat_settings(facts, chat)
        existing = [project for project in existing if project.chat_settings == completed]
    if prompt_set is not None:
        name = prompt_set.name if isinstance(prompt_set, Path) else prompt_set
        existing = [project for project in existing if project.prompt_set == name]
    return existing


def copy_project(db: Database, project: Project) -> Project:
    """Create a project on the same model, prompts and seed, with the same labelling rules and without labels."""
    custom_prompts = _all_prompts(db, project)
    if project.prompt_set in PROMPT_SETS and custom_prompts == shipped_prompts(project.prompt_set):
        custom_prompts = []
    return new_project(
        db,
        model=project.model,
        prompt_set=project.prompt_set,
        custom_prompts=custom_prompts,
        temperature=project.temperature,
        max_new_tokens=project.max_new_tokens,
        seed=project.seed,
        name=project.name,
        chat=project.chat_settings,
        labelling=get_labelling_config(db, project.id),
    )


def remove_project(db: Database, home: Path, project_id: int) -> Project:
    """Delete the rows and files of a project, its labels, reward models and runs; returns the deleted project.

    Raises StoreError for the open project, while one of its jobs or runs is active, and if files cannot be deleted.
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
            f'"{project.name}" was deleted, except for some of its files. Delete them by hand: {", ".join(leftover_folders)}'
        )
    return project


def _all_prompts(db: Database, project: Project) -> list[str]:
    """All prompts of the project in their original order, those for evaluation last."""
    return [prompt.text for split_name in ("train", "eval") for prompt in prompts(db, project.id, split_name)]


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
    """The project of this id; None: the most recently opened one, or a new one on the embedded model. Raises ConfigError."""
    if project_id is None:
        return current_project(db) or _first_project(db)
    existing = projects(db)
    matches = [project for project in existing if project.id == project_id]
    if not matches:
        existing_names = ", ".join(f"{project.id} ({project.name})" for project in existing) or "none yet"
        raise ConfigError(f"there is no project {project_id}; there are: {existing_names}.")
    return matches[0]


def _first_project(db: Database) -> Project:
    """The current project, or a new one, which is created only once even if several threads of a page need it."""
    with _FIRST_PROJECT_LOCK:
        return current_project(db) or new_project(db, seed=secret_seed())


def _unused_name(db: Database, name: str) -> str:
    """The name, with a number appended if it is taken: "Tales 2", then "Tales 3"."""
    used_names, number, candidate = {project.name for project in projects(db)}, 1, name
    while candidate in used_names:
        number += 1
        candidate = f"{re.sub(r' [0-9]+$', '', name)[: MAX_PROJECT_NAME_CHARS - 5]} {number}"
    return candidate


def _default_name(model: str, prompt_set: str) -> str:
    return prompt_set.capitalize() if model == EMBEDDED_MODEL else f"{Path(model).name}: {prompt_set}"
