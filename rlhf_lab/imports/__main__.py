"""`python -m rlhf_lab.imports`: one import in a process of its own, for the page. A request as JSON on standard input, the
answer as JSON on standard output: {"preview"}, {"preview", "saved", "words"}, {"texts", "source"}, or {"error"}; with "columns"
where only a person can say what those mean.

The page must not load torch, which `datasets` does, and a file that eats all memory must not take the page with it.
"""

import json
import sys
from pathlib import Path
from typing import Any

from rlhf_lab.chats import UnreadableError
from rlhf_lab.errors import LabError
from rlhf_lab.imports.columns import ColumnsError
from rlhf_lab.imports.found import Limits
from rlhf_lab.imports.report import preview, saved_dict, saved_words
from rlhf_lab.imports.saving import Into, doubts_of, save
from rlhf_lab.imports.texts import texts_of
from rlhf_lab.imports.understand import Asked, read_all
from rlhf_lab.imports.values import parse_choices
from rlhf_lab.kinds import Source
from rlhf_lab.store.database import Database


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """request: what, name, map, choices ("0=first,…"), split, config, bytes, home and project; with "save" also the fields
    of Into: then what was found is written. Or "texts" alone, which `texts_of` reads: then those come back."""
    try:
        if "texts" in request:
            return texts_of(str(request["texts"]))._asdict()
        asked = Asked(
            request["what"], request.get("name", ""), request.get("map", {}),
            parse_choices(request["choices"]) if request.get("choices") else {},
            request.get("split", "train"), request.get("config"), Limits(bytes=int(request.get("bytes", Limits.bytes))),
        )  # fmt: skip
        found = read_all(asked)
        more = {key: request[key] for key in ("drop_duplicates", "use_prompts", "skip_broken", "who") if key in request}
        annotator = str(request.get("annotator") or Into.annotator)
        into = Into(int(request["project"]), Source(request.get("source", Source.HUMAN)), annotator, **more)
        with Database.open(Path(request["home"])) as db:
            said: dict[str, Any] = {"preview": preview(found, doubts_of(db, found, into))}
            if request.get("save"):
                saved = save(db, found, into)
                said |= {"saved": saved_dict(saved), "words": saved_words(saved, found.name)}
    except ColumnsError as error:
        return {"error": error.words, "columns": list(error.columns)}
    except UnreadableError as error:
        return {"error": f"The meanings of the votes cannot be read: {error}."}
    except LabError as error:
        return {"error": str(error)}
    return said


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))))
