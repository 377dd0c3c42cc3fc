"""The first page: a prepared pair of the embedded model, before any model is loaded. No torch here.

Model text goes into text boxes, never into HTML: Gradio's HTML component runs what it is given.
"""

import os
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "200")

import gradio as gr

from rlhf_lab.errors import LabError
from rlhf_lab.jobs.setup import pick_project
from rlhf_lab.records import Pair
from rlhf_lab.store.comparisons import next_pair
from rlhf_lab.store.database import Database

ANNOTATOR = "visitor"


def first_pair(home: Path) -> Pair:
    """The pair that the page opens with; the first project of a new home begins with the shipped ones.

    Raises LabError when there is none.
    """
    with Database.open(home) as db:
        project = pick_project(db, None)
        pair = next_pair(db, project.id, ANNOTATOR)
    if pair is None:
        raise LabError(f"project {project.id} ({project.name}) has no pair to show; sample some first.")
    return pair


def build_page(home: Path) -> gr.Blocks:
    """The page, made anew from the store at every load."""

    def load() -> tuple[str, str, str]:
        pair = first_pair(home)
        return pair.prompt.text, pair.first.text.strip(), pair.second.text.strip()

    page: gr.Blocks = gr.Blocks(title="RLHF Lab", analytics_enabled=False)
    with page:
        gr.Markdown("# RLHF Lab\nTwo answers by the embedded model to one prompt. Which is better?")
        prompt = gr.Textbox(label="Prompt", interactive=False, lines=2)
        with gr.Row(equal_height=True):
            left = gr.Textbox(label="Answer 1", interactive=False, lines=6)
            right = gr.Textbox(label="Answer 2", interactive=False, lines=6)
        gr.Markdown(
            "This page only shows the pair for now: voting, training and the live curves are not in the browser yet. "
            "The whole loop runs on the command line: `python -m rlhf_lab demo`."
        )
        page.load(load, outputs=[prompt, left, right], api_visibility="private")
    return page
