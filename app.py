"""`python app.py`: the lab in the browser. A Space starts this file too."""

import sys

from rlhf_lab.entry_point import serve_lab

if __name__ == "__main__":
    sys.exit(serve_lab())
