"""`python -m rlhf_lab COMMAND`: the command line."""

import sys

from rlhf_lab.common.process_env import set_training_env

set_training_env(standalone=sys.argv[1:2] in (["demo"], ["sft"]))

from rlhf_lab.cli.main import main  # noqa: E402  torch reads the environment when it is imported

if __name__ == "__main__":
    sys.exit(main())
