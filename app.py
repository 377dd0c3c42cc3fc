"""`python app.py`: the lab in the browser. Spaces starts this file too."""

import argparse
import contextlib
import ipaddress
import sys
from pathlib import Path

from rlhf_lab.errors import ConfigError, LabError
from rlhf_lab.home import default_home
from rlhf_lab.ui.page import build_page, first_pair


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=7860, help="port to serve on (default 7860)")
    parser.add_argument("--home", type=Path, default=None, help=f"the lab's folder (default {default_home()})")
    parser.add_argument("--public-labelling", action="store_true", help="serve on an address others can reach")
    args = parser.parse_args(argv)
    try:
        check_host(args.host, args.public_labelling)
        home = (args.home or default_home()).expanduser().resolve()
        first_pair(home)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    build_page(home).queue(default_concurrency_limit=8, max_size=64, api_open=False).launch(
        server_name=args.host, server_port=args.port, share=False, show_error=False, strict_cors=True, ssr_mode=False,
        mcp_server=False, allowed_paths=[], max_file_size="5mb",
    )  # fmt: skip
    return 0


def check_host(host: str, public: bool) -> None:
    """Raises ConfigError for an address that others can reach, unless that is wanted."""
    loopback = host == "localhost"
    with contextlib.suppress(ValueError):
        loopback = loopback or ipaddress.ip_address(host).is_loopback
    if not loopback and not public:
        raise ConfigError(
            f"{host} can be reached by others, and nobody has to log in yet. Add --public-labelling to do it."
        )


if __name__ == "__main__":
    sys.exit(main())
