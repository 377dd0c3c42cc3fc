"""The glossary: its sentences are those of docs/METRICS.md, and it has every word that the page explains."""

import re

from rlhf_lab.config.policy import LIVE_SETTINGS, PolicyConfig
from rlhf_lab.ui.scripts import UI
from rlhf_lab.ui.shared.charts import CURVES
from rlhf_lab.ui.shared.glossary import definitions
from rlhf_lab.ui.train.token_view import equations_for

DOCUMENT = """
# Metrics

| key | what | unit | healthy | otherwise |
|---|---|---|---|---|
| `objective/kl` | distance from the base | nats | below 8 | raise `beta` |
| `grad_norm` | norm of the gradient | – | – | – |
| `a` | b |
| kl | no key, | nats | so | left out |

## Words

Text.

| word | what it is |
|---|---|
| KL, KL to the reference | how far it is. See beta |
| beta | a weight |
"""
#: The word in a call of `term` with a literal.
TERM = re.compile(r"\bterm\(\s*(?:\w+ \? )?'([^']+)'(?: : '([^']+)')?")


def test_definitions_are_the_sentences_of_the_documents(tmp_path):
    path = tmp_path / "METRICS.md"
    assert definitions(path) == {}  # not installed
    path.write_text(DOCUMENT)
    assert definitions(path) == {
        "objective/kl": "Distance from the base (nats). Healthy: below 8. Raise beta.",
        "grad_norm": "Norm of the gradient.",
        "kl": "How far it is. See beta.",
        "kl to the reference": "How far it is. See beta.",
        "beta": "A weight.",
    }


def test_every_curve_and_its_unit_are_defined():
    known = definitions()
    assert {curve.metric for curve in CURVES} <= set(known)
    words = {word.lower() for curve in CURVES for word in (curve.title, curve.unit) if word}
    assert words <= set(known)
    assert known["objective/kl"].startswith("KL of the sampling policy")
    assert "Healthy: 0 at step 1" in known["objective/kl"]


def test_every_word_that_a_script_explains_is_defined():
    scripts = "".join(path.read_text(encoding="utf-8") for path in UI.rglob("*.js"))
    words = {word for match in TERM.finditer(scripts) for word in match.groups() if word}
    assert {"accuracy", "reward model", "first ratio", "KL at the first step", "gold", "engine"} <= words
    words |= {*LIVE_SETTINGS, "score", "gold"}
    words |= {equation.name for equation in equations_for(PolicyConfig(), [])}
    assert {word.lower() for word in words} <= set(definitions())
