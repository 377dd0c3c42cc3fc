"""The Modelfile of Ollama for an exported model: prompts, system prompt and sampling as in the run."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

from rlhf_lab.common.model_folder import TOKENIZER_FILE, declares_chat_template, end_token_ids, read_json
from rlhf_lab.common.process_env import module_environment
from rlhf_lab.common.records import Project, Run
from rlhf_lab.common.text import fits_modelfile
from rlhf_lab.config.policy import PolicyConfig

log = logging.getLogger(__name__)

TEMPLATE_MODULE, TEMPLATE_TIMEOUT_S = "rlhf_lab.models.ollama_template", 120.0
#: Of a model without a chat template, which reads the system prompt and an empty line before the text.
TEXT_TEMPLATE = "{{ if .System }}{{ .System }}\n\n{{ end }}{{ .Prompt }}"
#: Filters that Ollama would apply by default.
FILTERS_OFF = {"top_k": 0, "top_p": 1, "min_p": 0, "repeat_penalty": 1}


def modelfile(base: Path, project: Project, run: Run) -> tuple[str, str]:
    """The text of the Modelfile beside model.gguf, or "" and why there is none. base: folder of the base model."""
    if not fits_modelfile(project.system_prompt):
        return "", "the system prompt contains three quotes, or a character that is not printed"
    template, differences = TEXT_TEMPLATE, []
    if declares_chat_template(base):
        derived = _derive_template(base, project)
        template, differences = derived["text"], derived["differences"]
        if not template:
            return "", derived["problem"]
    config = PolicyConfig.from_dict(run.config)
    parameters = {"temperature": config.temperature, **FILTERS_OFF, "num_predict": config.max_new_tokens}
    lines = [
        "# Prompts have the tokens that the model learned with.",
        *(f"# {difference}" for difference in differences),
        "FROM ./model.gguf",
        f'TEMPLATE """{template}"""',
        *([f'SYSTEM """{project.system_prompt}"""'] if project.system_prompt else []),
        *(f"PARAMETER {name} {value}" for name, value in parameters.items()),
        *(f'PARAMETER stop """{word}"""' for word in _stop_words(base)),
    ]
    return "\n".join(lines) + "\n", ""


def _derive_template(base: Path, project: Project) -> dict[str, Any]:
    """The `OllamaTemplate` of the chat template, derived in a process with transformers."""
    arguments = [str(base), project.system_prompt, json.dumps(dict(project.template_arguments))]
    try:
        done = subprocess.run(
            [sys.executable, "-m", TEMPLATE_MODULE, *arguments],
            capture_output=True, text=True, check=True, timeout=TEMPLATE_TIMEOUT_S, env=module_environment(),
        )  # fmt: skip
        result: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.warning("The chat template of %s could not be tried: %s", base, getattr(error, "stderr", None) or error)
        return {
            "text": "",
            "problem": "the model's chat template could not be tried (the log says why)",
            "differences": [],
        }
    return result


def _stop_words(base: Path) -> list[str]:
    """The texts of the tokens that end a response, as far as tokenizer.json names them."""
    tokens = read_json(base / TOKENIZER_FILE).get("added_tokens") or []
    names = {token.get("id"): token.get("content") for token in tokens}
    return [word for i in end_token_ids(base) if isinstance(word := names.get(i), str) and fits_modelfile(word)]
