"""The definitions that the page shows of words and metrics: the sentences of docs/METRICS.md."""

from pathlib import Path

from rlhf_lab.common.bundled_assets import bundled_path

METRICS_DOC = bundled_path("docs") / "METRICS.md"
WORDS_HEADING = "## Words"


def definitions(path: Path = METRICS_DOC) -> dict[str, str]:
    """The definition of each word (in lower case) and of each metric; empty if the documentation is not installed."""
    if not path.is_file():
        return {}
    metrics, _, words = path.read_text(encoding="utf-8").partition(WORDS_HEADING)
    return _metric_definitions(metrics) | _word_definitions(words)


def _word_definitions(text: str) -> dict[str, str]:
    """From rows of words, separated by commas, and their definition."""
    rows = [cells for cells in map(_cells, text.splitlines()) if len(cells) == 2][2:]  # without the head of the table
    return {word.lower(): _sentence(definition) + "." for words, definition in rows for word in words.split(", ")}


def _metric_definitions(text: str) -> dict[str, str]:
    definitions = {}
    for name, meaning, unit, healthy, otherwise in (
        cells for cells in map(_cells, text.splitlines()) if len(cells) == 5
    ):
        if not name.startswith("`"):
            continue
        definition = _sentence(meaning) + (f" ({unit})." if unit not in ("", "–") else ".")
        definition += f" Healthy: {healthy}." if healthy not in ("", "–") else ""
        definition += f" {_sentence(otherwise)}." if otherwise not in ("", "–") else ""
        definitions[name.strip("`")] = definition.replace("`", "").replace("*", "")
    return definitions


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
