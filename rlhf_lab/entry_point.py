"""`rlhf-lab`, the command of the installed package: the lab in the browser, or with a command that of `python -m rlhf_lab`."""

import sys


def main() -> int:
    """`rlhf-lab [OPTIONS]` serves the lab; `rlhf-lab COMMAND …` runs a command. Returns the exit status."""
    if len(sys.argv) == 1 or sys.argv[1].startswith("-"):
        from rlhf_lab.cli import serve  # without torch, so that the page starts fast

        return serve.main()
    import rlhf_lab.__main__  # noqa: F401  sets the environment before torch is imported
    from rlhf_lab.cli.main import main as run_command

    return run_command()
