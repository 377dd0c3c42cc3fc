"""Whether exported chats may have messages of the system. Templates are rendered in a process of their own, with transformers."""

import functools
import json
import logging
import subprocess
import sys

from sqlalchemy import func, or_, select

from rlhf_lab.common.process_env import module_environment
from rlhf_lab.common.records import Project
from rlhf_lab.errors import ModelError
from rlhf_lab.jobs.model_inspection import read_model_facts
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database

log = logging.getLogger("rlhf_lab.jobs")
TEMPLATE_MODULE, TEMPLATE_TIMEOUT_S = "rlhf_lab.models.chat_prompts", 120.0
SYSTEM_BEGINNINGS = ("\n\nSystem:", '[{"role": "system"')  # of a stored prompt, see common/chat_format.py


def exports_system_role(db: Database, project: Project) -> bool:
    """Whether chats of this project have messages of the system, as the model reads them; True if there is none to write."""
    text = t.prompts.c.text
    begins = or_(*(func.substr(text, 1, len(beginning)) == beginning for beginning in SYSTEM_BEGINNINGS))
    of_prompts = db.fetch(select(text).where(t.prompts.c.project_id == project.id, begins).limit(1)).first()
    if not project.system_prompt and of_prompts is None:
        return True
    return has_system_role(project.model, json.dumps(dict(project.template_arguments)))


@functools.lru_cache
def has_system_role(model: str, template_arguments: str) -> bool:
    """Whether the chat template writes messages of the system: some leave them out, others refuse them. template_arguments: JSON.

    True for a model that cannot be read, or that has no template.
    """
    try:
        facts = read_model_facts(model)
        if facts.folder is None or not facts.has_chat_template:
            return True
        done = subprocess.run(
            [sys.executable, "-m", TEMPLATE_MODULE, str(facts.folder), template_arguments],
            capture_output=True, text=True, check=True, timeout=TEMPLATE_TIMEOUT_S, env=module_environment(),
        )  # fmt: skip
    except (ModelError, OSError, subprocess.SubprocessError) as error:
        log.warning("The chat template of %s could not be tried: %s", model, error)
        return True
    return bool(json.loads(done.stdout))
