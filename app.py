"""`python app.py`: the lab in the browser. A Space starts this file too."""

import sys

from rlhf_lab.cli.serve import main

if __name__ == "__main__":
    sys.exit(main())
