"""`rlhf-lab`, the command of the installed package: the lab in the browser, or with a command that of `python -m rlhf_lab`."""

import sys


def main() -> int:
    """`rlhf-lab [OPTIONS]` serves the lab; `rlhf-lab COMMAND …` runs a command. Returns the exit status."""
    if len(sys.argv) == 1 or sys.argv[1].startswith("-"):
        from rlhf_lab.cli import serve  # without torch, so that the page starts fast

        return serve.main()
    from rlhf_lab import __main__  # sets the environment before torch is imported

    return __main__.main()
