"""Screen "Train"."""

import gradio as gr

from rlhf_lab.ui.context import Context


def build(ctx: Context, operator: gr.BrowserState) -> None:
    gr.Markdown("Being built.")
