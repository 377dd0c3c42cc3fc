"""`python app.py`, and `rlhf-lab`, the command of the installed package."""

import sys


def main() -> int:
    """`rlhf-lab [OPTIONS]` serves the lab; `rlhf-lab COMMAND …` runs a command. Returns the exit status."""
    if len(sys.argv) == 1 or sys.argv[1].startswith("-"):
        return serve_lab()
    import rlhf_lab.__main__  # noqa: F401  sets the environment before torch is imported
    from rlhf_lab.cli.main import main as run_command

    return run_command()


def serve_lab() -> int:
    """Serve the lab with the options of the command line. Returns the exit status."""
    if not {"-h", "--help", "--version"}.intersection(sys.argv):
        print("RLHF Lab is starting …", flush=True)  # importing Gradio takes seconds
    from rlhf_lab.cli import serve  # without torch, so that the page starts fast

    return serve.main()
