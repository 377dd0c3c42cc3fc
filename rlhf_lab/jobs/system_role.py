"""Whether exported chats may have messages of the system."""

import functools
import json
import logging

from sqlalchemy import func, or_, select

from rlhf_lab.common.records import Project
from rlhf_lab.errors import ModelError
from rlhf_lab.jobs.model_inspection import read_model_facts
from rlhf_lab.models.chat_templates import TemplateRenderer, writes_system_role
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database

log = logging.getLogger("rlhf_lab.jobs")
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
        arguments = {"bos_token": "", "eos_token": ""} | json.loads(template_arguments)
        with TemplateRenderer() as renderer:
            return writes_system_role(lambda chat: renderer.render(facts.name, facts.chat_template, chat, arguments))
    except ModelError as error:
        log.warning("The chat template of %s could not be tried: %s", model, error)
        return True
