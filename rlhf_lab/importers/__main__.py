"""`python -m rlhf_lab.importers`: one import in a process of its own, for the page. JSON request on stdin, reply on stdout.

The page must not load torch, which `datasets` does, and a file that exhausts the memory must not end the page.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlhf_lab.common.chat_format import UnreadableError
from rlhf_lab.common.enums import Source
from rlhf_lab.errors import LabError
from rlhf_lab.importers.cell_parsers import parse_choice_words
from rlhf_lab.importers.column_mapping import ColumnMappingError
from rlhf_lab.importers.parsed_rows import Limits
from rlhf_lab.importers.parser import ImportRequest, parse_file
from rlhf_lab.importers.project_index import adapt_to_project
from rlhf_lab.importers.remedies import for_page
from rlhf_lab.importers.run_metrics import read_metrics
from rlhf_lab.importers.summary import build_preview, format_result
from rlhf_lab.importers.text_corpus import load_texts
from rlhf_lab.importers.writer import ImportTarget, count_duplicates, save_import
from rlhf_lab.store.database import Database


def handle_request(request: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request.

    Args:
        request: what, name, map, choices ("0=first,…"), answers, split, config, bytes, home, project, and fields of ImportTarget;
            with "save" the votes are also written. Or only "texts": the argument of `load_texts`. Or "metrics", home, project,
            run_name and updates_per_step: a file with the metrics of a run, which is added.

    Returns:
        {"preview"}, {"preview", "saved", "message"}, {"texts", "source"}, {"message"} or {"error"}; an error that only a person
        can resolve also has "columns", to be mapped, and "answers", one of which is to be chosen. Remedies name the fields of the
        page.
    """
    try:
        if "texts" in request:
            return load_texts(str(request["texts"]))._asdict()
        if "metrics" in request:
            return {"message": _add_run(request)}
        import_request = ImportRequest(
            request["what"],
            request.get("name", ""),
            request.get("map", {}),
            parse_choice_words(request["choices"]) if request.get("choices") else {},
            request.get("split", "train"),
            request.get("config"),
            Limits(max_bytes=int(request.get("bytes", Limits.max_bytes))),
            frozenset(request.get("answers", ())),
        )
        parsed_file = parse_file(import_request)
        target_options = {
            key: request[key] for key in ("drop_duplicates", "use_prompts", "skip_broken", "who") if key in request
        }
        annotator = str(request.get("annotator") or ImportTarget.annotator)
        target = ImportTarget(
            int(request["project"]), Source(request.get("source", Source.HUMAN)), annotator, **target_options
        )
        with Database.open(Path(request["home"])) as db:
            parsed_file = adapt_to_project(db, parsed_file, target.project_id)
            preview = build_preview(parsed_file, count_duplicates(db, parsed_file, target))
            reply: dict[str, Any] = {"preview": preview | {"problems": list(map(for_page, preview["problems"]))}}
            if request.get("save"):
                result = save_import(db, parsed_file, target)
                reply |= {"saved": asdict(result), "message": format_result(result, parsed_file)}
    except ColumnMappingError as error:
        message = for_page(f"{error.message} {error.remedy}").strip()
        return {"error": message, "columns": list(error.columns), "answers": error.answers}
    except UnreadableError as error:
        return {"error": f"The meanings of the votes cannot be read: {error}."}
    except LabError as error:
        return {"error": for_page(str(error))}
    return reply


def _add_run(request: dict[str, Any]) -> str:
    metrics = read_metrics(Path(request["metrics"]), int(request["updates_per_step"]))
    with Database.open(Path(request["home"])) as db:
        run_id = metrics.add_run(db, int(request["project"]), str(request["run_name"]))
    return f"Run {run_id}, made elsewhere: {metrics.summary()}"


if __name__ == "__main__":
    print(json.dumps(handle_request(json.load(sys.stdin))))
