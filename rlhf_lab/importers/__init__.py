"""Preferences that others collected, taken into a project: files, Hub data sets, votes of several people. No torch here,
except where `datasets` reads from the Hub.

    files        JSON Lines, JSON, CSV, Parquet, gzip -> rows, with row numbers in every error
    hub          OWNER/NAME on the Hub -> rows
    columns      which column means what
    values, rows a row -> judgements
    understand   a whole file: mapping, judgements, problems; writes nothing
    there, place what the project holds already, and which pair a judgement is about
    saving       into the tables, piece by piece, on the pairs there are or on new ones
    texts        texts of one column, for PPO-ptx
    __main__     all of it in a process of its own, for the page

    found = read_all(Asked("votes.csv"))          what it says and what is wrong with it
    save(db, found, Into(project.id))             Saved(votes=…, pairs=…)
"""

from rlhf_lab.importers.column_mapping import MEANINGS, parse_map
from rlhf_lab.importers.parsed_rows import Limits, ParsedFile, ParsedVote, RowError
from rlhf_lab.importers.parser import ImportRequest, parse_file, summarize_errors
from rlhf_lab.importers.text_corpus import TextCorpus, load_texts
from rlhf_lab.importers.writer import ImportResult, ImportTarget, save_import

__all__ = [
    "MEANINGS",
    "ImportRequest",
    "ImportResult",
    "ImportTarget",
    "Limits",
    "ParsedFile",
    "ParsedVote",
    "RowError",
    "TextCorpus",
    "load_texts",
    "parse_file",
    "parse_map",
    "save_import",
    "summarize_errors",
]
