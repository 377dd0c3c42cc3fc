"""Part "Import preferences": a file or a Hub data set, looked at first, its columns mapped, then taken in: what is there already
stays as it is, and with a row that cannot be used nothing is, unless such rows are left out. Below it what was imported so far,
each to be taken back.

All the reading of files happens in a process of its own: `reading`.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder

from rlhf_lab.errors import ConfigError, DataError
from rlhf_lab.imports import MEANINGS
from rlhf_lab.imports.hub import is_hub_name
from rlhf_lab.imports.report import goes_words
from rlhf_lab.kinds import Source
from rlhf_lab.store.imports import imports_of, take_back, what_goes
from rlhf_lab.ui.context import Context, operated, read, told, unless_seen
from rlhf_lab.ui.reading import KINDS, ROOT, Run, in_a_process
from rlhf_lab.ui.train import whole
from rlhf_lab.ui.widgets import QUIET, widget

MOST_BYTES = 5_000_000  # what the page takes as an upload; the command line takes more
#: What a person maps by hand; the rest is found by its name.
MAPPED = (
    "prompt",
    "chosen",
    "rejected",
    "first",
    "second",
    "choice",
    "annotator",
    "annotators",
    "score_first",
    "score_second",
)
TICKS = ("use_prompts", "drop_duplicates", "skip_broken")


def build(ctx: Context, operator: gr.BrowserState) -> None:
    counter = Counter(ctx)
    data = {"kinds": list(KINDS), "most": MOST_BYTES, "meanings": [name for name in MAPPED if name in MEANINGS]}

    def look(question: dict[str, Any]) -> dict[str, Any]:
        return unless_seen(listed(ctx), question)

    part = widget("data", reads=[read(look)], data=data, label="Import preferences")

    def act(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return operated(ctx, secret, event, counter.obey)

    part.act(told(act), operator, part, **QUIET)


def listed(ctx: Context) -> dict[str, Any]:
    """The imports of the open project, newest first."""
    project = ctx.project
    return {
        "project": project.id,
        "imports": [asdict(one) for one in imports_of(ctx.db, project.id)],
    }


class Counter:
    """Takes what the page hands in, and back what it took."""

    def __init__(self, ctx: Context, run: Run = in_a_process, uploads: Path | None = None) -> None:
        self.ctx, self.run = ctx, run
        self.uploads = (uploads or Path(get_upload_folder())).resolve()

    def obey(self, said: dict[str, Any]) -> dict[str, Any]:
        """{"do": "preview" | "import", …}, {"do": "ask" | "back", "project", "import"}. Raises LabError; with "columns" the page
        asks what those mean."""
        if said.get("do") in ("ask", "back"):
            return self.back(said)
        if said.get("do") not in ("preview", "import"):
            raise ConfigError(f'The lab cannot "{said.get("do")}" here. Reload the page and try again.')
        request = self.request(said)
        source = said.get("source")
        if source not in tuple(Source):
            raise ConfigError("Say whose votes these are: of people, or simulated.")
        request |= {"source": source, "annotator": str(said.get("annotator") or "").strip()[:60]}
        if said["do"] == "import":
            request |= {"save": True, "who": self.ctx.visitor().nickname or "operator"}
            request |= {name: bool(said.get(name)) for name in TICKS}
        answer = self.run(request)
        if "columns" in answer:
            return {
                "error": f"{answer['error']} Say above what they mean, and look again.",
                "columns": answer["columns"],
            }
        if "error" in answer:
            raise DataError(str(answer["error"]))
        return {"done": answer.get("words", ""), "preview": answer["preview"]}

    def back(self, said: dict[str, Any]) -> dict[str, Any]:
        """What would go with an import, or what went. The page says which project it showed: another may be open by now."""
        project, one = whole(said, "project"), whole(said, "import")
        if project != self.ctx.project.id:
            raise ConfigError("Another project was opened meanwhile. Look at the list again.")
        if said["do"] == "ask":
            return {"goes": goes_words(what_goes(self.ctx.db, project, one))}
        return {"done": f"Taken back: {goes_words(take_back(self.ctx.db, project, one), done=True)}"}

    def request(self, said: dict[str, Any]) -> dict[str, Any]:
        """What to read. Only what was uploaded, or a name on the Hub: no other file of this machine."""
        mapping = said.get("map") or {}
        if not isinstance(mapping, dict) or not all(isinstance(one, str) for one in mapping.values()):
            raise ConfigError("The page sent no mapping of columns. Reload it and try again.")
        request: dict[str, Any] = {
            "home": str(self.ctx.home), "project": self.ctx.project.id,
            "map": {key: mapping[key] for key in MAPPED if key in mapping}, "choices": str(said.get("choices") or ""),
        }  # fmt: skip
        if said.get("path"):
            path = Path(str(said["path"])).resolve()
            if not path.is_relative_to(self.uploads) or not path.is_file():
                raise ConfigError("That file is not here (any more). Choose it again.")
            return request | {
                "what": str(path),
                "name": Path(str(said.get("name") or path.name)).name[:80],
                "bytes": 20 * MOST_BYTES,
            }
        name = str(said.get("hub") or "").strip()
        if not is_hub_name(name) or (ROOT / name).exists():
            raise ConfigError("Choose a file, or write the name of a data set on the Hub as OWNER/NAME.")
        return request | {"what": name, "split": str(said.get("split") or "train")}
