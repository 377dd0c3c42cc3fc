"""The web page. Imports Gradio here, before any module of the package, without its slowest optional imports."""

import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "200")
# On a Space, Gradio would start a server that replaces code, and its page would ask huggingface.co about the Space.
os.environ.pop("SYSTEM", None)

from rlhf_lab.ui import gradio_patches  # noqa: F401
