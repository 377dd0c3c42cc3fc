"""Parts that several cards of exported data and models share."""

import json
import re
from collections.abc import Mapping
from typing import Any

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL
from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import Project, RewardModelRow


def card_header(origin: Mapping[str, Any], **fields: Any) -> str:
    """The header of a model card, as the Hub reads it."""
    from huggingface_hub import ModelCardData

    return f"---\n{ModelCardData(**fields, **origin).to_yaml()}\n---\n\n"


def in_line(text: str) -> str:
    """A text within one line of Markdown: line breaks are spaces, and what begins markup is escaped."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in " ".join(text.split()))


def code_span(text: str) -> str:
    """A line of text, which does not begin or end with a backtick, as code of Markdown."""
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{ticks}{text}{ticks}"


def in_fence(source: str) -> str:
    """Python within a fence of Markdown, which backticks in a literal would end."""
    return source.replace("`", r"\x60")


def sampled_with(project: Project) -> str:
    """What the prompts were encoded with beside themselves, as sentences; "" if there is nothing."""
    parts = []
    if project.system_prompt:
        parts.append(
            f"The texts were sampled with the system prompt {_json_span(project.system_prompt)} before each prompt that has none "
            "of its own (a template without a system role has it at the beginning of the first message)."
        )
    if project.template_arguments:
        parts.append(f"Arguments of the chat template: {_json_span(dict(project.template_arguments))}.")
    return "".join(f"{part}\n" for part in parts)


def _json_span(value: Any) -> str:
    return code_span(json.dumps(value, ensure_ascii=False))


def prompt_code(project: Project) -> str:
    """A function `encode_prompt` that encodes as `Backbone.encode_prompt` does, for a prompt of one text; needs `tokenizer`."""
    arguments = f", **{in_fence(repr(dict(project.template_arguments)))}" if project.template_arguments else ""
    render = f"tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False{arguments})"
    if not project.system_prompt:
        return f"""def encode_prompt(prompt):
    if tokenizer.chat_template is None:
        ids = tokenizer(prompt).input_ids
        return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids
    chat = [{{"role": "user", "content": prompt}}]
    text = {render}
    return tokenizer(text, add_special_tokens=False).input_ids"""
    system_prompt = in_fence(repr(project.system_prompt))
    return f"""import jinja2

SYSTEM = {system_prompt}


def encode_prompt(prompt):
    joined = f"{{SYSTEM}}\\n\\n{{prompt}}"
    if tokenizer.chat_template is None:
        ids = tokenizer(joined).input_ids
        return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids
    system, user = {{"role": "system", "content": SYSTEM}}, {{"role": "user", "content": prompt}}
    for chat in ([system, user], [{{"role": "user", "content": joined}}]):
        try:  # some templates refuse a system message, others leave it out
            text = {render}
        except jinja2.TemplateError:
            continue
        if SYSTEM.strip() in text:
            break
    return tokenizer(text, add_special_tokens=False).input_ids"""


def label_summary(row: RewardModelRow) -> str:
    count = len(row.snapshot.vote_ids)
    if row.snapshot.source is Source.SIMULATED:
        return f"{count} simulated labels (by a program, not by people)"
    return f"{count} labels of people"


def embedded_note(base: str) -> str:
    return f" (the {EMBEDDED_MODEL} model, in RLHF Lab's repository)" if base == "assets/model" else ""
