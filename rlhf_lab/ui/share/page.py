"""One HTML file that shows a recorded run without a network: scripts and styles of the lab's own page, and the data as JSON."""

import base64
import html
import json
import re
import time
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from rlhf_lab.common.atomic import atomic_file
from rlhf_lab.errors import ConfigError
from rlhf_lab.ui.scripts import MODULES, STYLES
from rlhf_lab.ui.share.recording import Recording

ENTRY = "share/view.js"
MAX_BYTES = 5_000_000
INDEX = "index.html"
INDEX_MARK = '<meta name="generator" content="rlhf-lab index">'
EMBEDDED = re.compile(r'<script type="application/json" id="recording">(.*?)</script>', re.DOTALL)
RELATIVE_IMPORT = re.compile(r"(\bfrom |\bimport )'(\.{1,2}/[^']+)'")
#: What a page of untrusted texts may do: run its own scripts, which are in it, and nothing else.
POLICY = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:"


def share_page(recording: Recording) -> str:
    """The whole file. Raises ConfigError if it would be larger than MAX_BYTES."""
    page = (
        f'{page_head(recording["title"])}<script type="importmap">{import_map()}</script></head>'
        f'<body class="lab-shared"><main class="lab lab-share"></main>'
        f'<script type="application/json" id="recording">{embedded_json(recording)}</script>'
        f'<script type="module">import mount from "lab/{ENTRY}"; mount();</script></body></html>\n'
    )
    if (size := len(page.encode())) > MAX_BYTES:
        raise ConfigError(
            f"the page would have {size / 1e6:.1f} MB; at most {MAX_BYTES / 1e6:.0f} are useful to share. Its texts are long: "
            "export the run as files instead."
        )
    return page


def page_head(title: str) -> str:
    """The beginning of a file, up to its last element of the head."""
    styles = "\n".join(path.read_text(encoding="utf-8") for path in STYLES)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)} – RLHF Lab</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><style>{styles}</style>'
    )


def embedded_json(value: Any) -> str:
    """JSON that no text in it can end: "<" is written as an escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=asdict)
    return text.replace("<", "\\u003c")


def import_map() -> str:
    """The entry and the modules that it imports, as data: addresses by name. Relative imports become names, since a data: address
    has no folder."""
    sources: dict[str, str] = {}

    def add(path: str) -> None:
        if path in sources:
            return
        sources[path] = ""

        def to_name(match: re.Match[str]) -> str:
            target = resolve(PurePosixPath(path).parent, match[2])
            add(target)
            return f"{match[1]}'lab/{target}'"

        sources[path] = RELATIVE_IMPORT.sub(to_name, MODULES[path].decode())

    add(ENTRY)
    encoded = {f"lab/{path}": base64.b64encode(source.encode()).decode() for path, source in sources.items()}
    return json.dumps({"imports": {name: f"data:text/javascript;base64,{text}" for name, text in encoded.items()}})


def resolve(folder: PurePosixPath, address: str) -> str:
    """A relative address as a path below rlhf_lab/ui."""
    parts = list(folder.parts)
    for part in PurePosixPath(address).parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def index_page(folder: Path) -> str:
    """A page that lists the shared pages of a folder, the newest first: with it, the folder is a static site."""
    recordings = []
    for file in filter(Path.is_file, sorted(folder.glob("*.html"))):
        if match := EMBEDDED.search(file.read_text(encoding="utf-8", errors="replace")):
            recording = json.loads(match[1])
            recordings.append((recording["recorded_at"], file.name, recording["title"], recording["algorithm"]))
    items = "".join(
        f'<li><a href="{quote(name)}">{html.escape(title)}</a> '
        f'<span class="muted">{html.escape(algorithm.upper())}, {time.strftime("%Y-%m-%d", time.gmtime(at))}</span></li>'
        for at, name, title, algorithm in sorted(recordings, reverse=True)
    )
    return (
        f'{page_head("Recorded runs")}{INDEX_MARK}</head><body class="lab-shared"><main class="lab lab-share">'
        f'<section class="lab-card"><h1>Recorded runs</h1><ul>{items}</ul></section></main></body></html>\n'
    )


def write_page(recording: Recording, file: Path, *, force: bool = False) -> None:
    """Raises ConfigError if the file exists, unless `force`; OSError."""
    if file.exists() and not force:
        raise ConfigError(f"{file} exists already. Choose another name, or add --force to replace it.")
    page = share_page(recording)
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as temporary:
        temporary.write_text(page, encoding="utf-8")


def write_index(folder: Path, *, force: bool = False) -> None:
    """Write `index_page` into the folder. Raises ConfigError if it has another index, unless `force`; OSError."""
    file = folder / INDEX
    if file.exists() and not force and INDEX_MARK not in file.read_text(encoding="utf-8", errors="replace"):
        raise ConfigError(f"{file} exists and is not a list of recorded runs. Add --force to replace it.")
    with atomic_file(file) as temporary:
        temporary.write_text(index_page(folder), encoding="utf-8")
