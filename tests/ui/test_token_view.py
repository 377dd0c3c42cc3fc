"""The token view: its equations hold for every token that a trainer records, for every algorithm."""

import dataclasses
import json
import math
import re
from types import SimpleNamespace

import pytest
from fake_runs import a_run
from support import tiny_models

from rlhf_lab.common.records import StepResult, TokenRecord
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import StoreError
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run
from rlhf_lab.ui.scripts import UI
from rlhf_lab.ui.train.token_view import color_intensity, names_in_equation, notable_token, token_view

SIGNS = {"−": "-", "·": "*", "½": "0.5", "²": "**2"}
FUNCTIONS = {"exp": math.exp, "max": max, "clip": lambda x, low, high: min(max(x, low), high)}


def both_sides(equation, values):
    """Both sides of an equation, evaluated."""
    expression = re.sub(r"\{(\w+)\}", lambda match: f"({values[match[1]]!r})", equation)
    for sign, python in SIGNS.items():
        expression = expression.replace(sign, python)
    return [eval(side, {"__builtins__": {}}, FUNCTIONS) for side in expression.split("=")]


def record_and_view(ctx, trainer, result):
    config = trainer.state.config.to_dict()
    run = create_run(ctx.db, ctx.project.id, a_run(ctx).reward_model_id, "r", config=config, manifest={}, total_steps=9)
    record_step(ctx.db, run.id, result)
    return token_view(ctx.db, run.id, result.step)


SETTINGS = [
    ("ppo", {"score_clip": 0.5, "beta": 0.3, "gamma": 0.9, "lam": 0.8}),
    ("ppo", {"kl_estimator": "k2", "score_placement": "spread", "whiten_advantages": False, "value_target": "monte_carlo"}),
    ("ppo", {"kl_estimator": "k3", "bootstrap_cut": True, "cliprange": None, "whiten_rewards": True}),
    ("ppo", {"kl_estimator": "full", "advantage": "nstep", "nstep": 2, "kl_controller": "adaptive", "kl_horizon": 30.0}),
    ("ppo", {"kl_estimator": "k2", "kl_penalty": "loss"}),
    ("ppo_penalty", {}), ("trpo", {}), ("a2c", {}), ("rloo", {}), ("grpo", {}),
    ("reinforce", {}), ("reinforce", {"baseline": "batch_mean", "credit": "total"}),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "settings"), SETTINGS)
def test_every_equation_holds_for_every_token(ctx, llama_folder, algorithm, settings):
    """In the middle of a run, where policy, reference and values differ; for equations that need this response alone."""
    trainer = tiny_models.midway(llama_folder, algorithm, token_rows=6, missing_eos_penalty=0.7, **settings)
    reply = record_and_view(ctx, trainer, trainer.run_step())
    assert len(reply["rows"]) == 6
    checked = set()
    for row in reply["rows"]:
        assert "".join(row["tokens"])
        for i in range(len(row["tokens"])):
            values = reply["constants"] | {name: column[i] for name, column in row["columns"].items()}
            for equation in reply["equations"]:
                if "=" not in equation.equation:
                    assert names_in_equation(equation.equation) <= values.keys()
                    continue
                left, right = both_sides(equation.equation, values)
                assert left == pytest.approx(right, abs=3e-5, rel=1e-4), (equation, values)
                checked.add(equation.name)
    expected = {"ratio", "KL", "reward"} - ({"KL"} if settings.get("kl_estimator") == "full" else set())
    expected -= {"reward"} if settings.get("whiten_rewards") else set()
    if algorithm in ("ppo", "ppo_penalty", "trpo", "a2c"):
        expected |= {"surprise", "value's loss"}
        if settings.get("advantage") != "nstep":
            expected.add("advantage before whitening" if trainer.state.config.whiten_advantages else "advantage")
    if trainer.state.config.whiten_advantages:
        expected.add("advantage")
    assert expected <= checked
    for scale in reply["color_scales"]:
        assert scale["column"] in reply["rows"][0]["columns"]


OLD = TokenRecord(
    row=0, prompt="Once", token_ids=[7, 0], tokens=[" ${alert(1)}", "<img src=x>"],
    logprob=[-0.1, -2.5], old_logprob=[-0.1, -2.0], ref_logprob=[-0.3, -1.0],
    kl=[0.2, -1.0], value=[0.5, 0.25], reward=[-0.02, 1.1], advantage=[1.0, -1.0],
    ratio=[1.0, 0.6065306597126334], clipped=[False, True],
)  # fmt: skip


def test_numbers_by_hand(ctx):
    """gamma 1, lambda 0.95, clip 0.2, the score 1.2 on the last token; beta as the step had it, not as the run began."""
    run = a_run(ctx)
    record = dataclasses.replace(
        OLD,
        raw_advantage=[0.5975, 0.85],
        target=[1.0975, 1.1],
        score=3.0,
        shaped_score=1.0,
        advantage_mean=0.5,
        advantage_sd=0.25,
    )
    record_step(ctx.db, run.id, StepResult(1, {"objective/kl_coef": 0.25}, tokens=[record]))
    reply = token_view(ctx.db, run.id, 1)
    assert reply["constants"] == {"beta": 0.25, "gamma": 1.0, "lam": 0.95, "low": 0.8, "high": 1.2}
    (row,) = reply["rows"]
    assert row["turns"] == [{"role": "user", "content": "Once"}]
    assert (row["tokens"], row["score"], row["shaped_score"]) == (OLD.tokens, 3.0, 1.0)
    assert row["clipped"] == [False, True]
    columns = row["columns"]
    assert columns["shaped_score"] == [0.0, 1.0]
    assert columns["next_value"] == [0.25, 0.0]
    assert columns["next_raw_advantage"] == [0.85, 0.0]
    assert columns["delta"] == pytest.approx([-0.27, 0.85])
    assert columns["loss"] == pytest.approx([-1.0, 0.8])  # -A · ratio is 0.61, at the clip 0.8
    assert columns["value_loss"] == pytest.approx([0.17850, 0.36125], abs=1e-5)
    assert [equation.name for equation in reply["equations"]] == [
        "KL", "reward", "surprise", "advantage before whitening", "advantage", "ratio", "loss", "value's target", "value's loss",
    ]  # fmt: skip


def test_a_step_of_an_older_version_has_only_its_recorded_columns(ctx):
    """Without columns of later versions: no scores and raw advantages, so no equations that need them."""
    run = a_run(ctx)
    record_step(ctx.db, run.id, StepResult(1, {}, tokens=[OLD]))
    reply = token_view(ctx.db, run.id, 1)
    assert reply["constants"]["beta"] == 0.1  # beta of the run: the step has none
    assert [equation.name for equation in reply["equations"]] == ["KL", "surprise", "ratio", "loss"]
    assert {"shaped_score", "raw_advantage", "target", "advantage_sd"}.isdisjoint(reply["rows"][0]["columns"])


def test_a_step_without_tokens_and_no_run(ctx):
    run = a_run(ctx)
    reply = token_view(ctx.db, run.id, 3)
    assert (reply["rows"], reply["tokens_per_step"], reply["step"], reply["last_step"]) == (
        [],
        PolicyConfig().token_rows,
        3,
        0,
    )
    with pytest.raises(StoreError, match="run 99"):
        token_view(ctx.db, 99, 1)


def view_of_records(ctx, *records, **settings):
    """The reply for a step with these records; `settings`: those of the run."""
    config = PolicyConfig(**settings).to_dict()
    run = create_run(ctx.db, ctx.project.id, a_run(ctx).reward_model_id, "r", config=config, manifest={}, total_steps=9)
    record_step(ctx.db, run.id, StepResult(1, {"objective/kl_coef": 0.25}, tokens=list(records)))
    return token_view(ctx.db, run.id, 1)


def test_spread_score_and_bootstrapped_value_by_hand(ctx):
    """A text that was cut: what comes after the last token still counts, here with gamma 0.5 and 0.4."""
    record = dataclasses.replace(OLD, score=3.0, shaped_score=3.0, bootstrap_value=0.4)
    columns = view_of_records(ctx, record, score_placement="spread", gamma=0.5)["rows"][0]["columns"]
    assert columns["shaped_score"] == [1.5, 1.5]
    assert columns["next_value"] == [0.25, 0.4]
    assert columns["delta"] == pytest.approx([-0.02 + 0.5 * 0.25 - 0.5, 1.1 + 0.5 * 0.4 - 0.25])


def test_numbers_are_rounded_to_six_digits(ctx):
    record = dataclasses.replace(OLD, kl=[0.123456789, -1234567.0])
    assert view_of_records(ctx, record)["rows"][0]["columns"]["kl"] == [0.123457, -1234570.0]


@pytest.mark.parametrize(
    ("offset", "largest", "colour"),
    [(2.0, 2.0, 1.0), (-2.0, 2.0, -1.0), (0.0, 2.0, 0.0), (-0.0, 2.0, 0.0), (0.5, 2.0, 0.25), (-0.02, 2.0, -0.01),
     (3.0, 2.0, 1.0), (-3.0, 2.0, -1.0), (math.inf, 2.0, 1.0), (-math.inf, 2.0, -1.0), (math.nan, 2.0, 0.0),
     (0.0, 0.0, 0.0), (1e-13, 0.0, 0.0), (math.inf, 0.0, 1.0)],
)  # fmt: skip
def test_color_intensity(offset, largest, colour):
    """At both ends, at zero, between them, beyond them; what is not a number gets none."""
    assert color_intensity(offset, largest) == colour
    assert math.copysign(1, color_intensity(offset, largest)) == (-1 if colour < 0 else 1)


def test_all_responses_of_a_step_share_the_range_of_a_scale(ctx):
    """Ratios are measured from 1, other values from 0; the farthest value of both texts has the strongest colour."""
    other = dataclasses.replace(OLD, row=1, advantage=[0.5, 4.0], ratio=[1.4, 0.9], kl=[0.0, 0.05], reward=[0.0, 0.0])
    reply = view_of_records(ctx, OLD, other)
    tints = [row["colors"] for row in reply["rows"]]
    assert [row["advantage"] for row in tints] == [[0.25, -0.25], [0.12, 1.0]]
    assert [row["ratio"] for row in tints] == [[0.0, -0.98], [1.0, -0.25]]
    assert [row["kl"] for row in tints] == [[0.2, -1.0], [0.0, 0.05]]
    assert [row["old_logprob"] for row in tints] == [[-0.05, -1.0]] * 2
    assert {scale["column"]: scale["legend"] for scale in reply["color_scales"]} == {
        "advantage": [(-1.0, -0.25), (0.0, 0.0), (4.0, 1.0)],
        "reward": [(-0.02, -0.02), (0.0, 0.0), (1.1, 1.0)],
        "kl": [(-1.0, -1.0), (0.0, 0.0), (0.2, 0.2)],
        "ratio": [(0.606531, -0.98), (1.0, 0.0), (1.4, 1.0)],
        "old_logprob": [(-2.0, -1.0), (0.0, 0.0)],
        "value": [(0.0, 0.0), (0.5, 1.0)],
    }
    assert [scale["column"] for scale in reply["color_scales"] if scale["higher_is_better"]] == ["advantage", "reward"]


def test_values_that_are_not_finite_spoil_neither_colours_nor_json(ctx):
    record = dataclasses.replace(OLD, advantage=[math.nan, 2.0], ratio=[math.inf, 1.5])
    reply = view_of_records(ctx, record)
    (row,) = reply["rows"]
    assert (row["columns"]["advantage"], row["columns"]["ratio"]) == ([None, 2.0], [None, 1.5])
    assert (row["colors"]["advantage"], row["colors"]["ratio"]) == ([0.0, 1.0], [1.0, 1.0])
    legends = {scale["column"]: scale["legend"] for scale in reply["color_scales"]}
    assert (legends["advantage"], legends["ratio"]) == ([(0.0, 0.0), (2.0, 1.0)], [(1.0, 0.0), (1.5, 1.0)])
    json.dumps(reply, allow_nan=False, default=dataclasses.asdict)
    empty = view_of_records(ctx, dataclasses.replace(OLD, advantage=[math.nan, math.nan]))
    assert empty["color_scales"][0]["legend"] == [(0.0, 0.0)]


LAB_CSS = (UI / "shared" / "page.css").read_text()


def palette(rule):
    """The colours of a rule of lab.css, (red, green, blue) by name."""
    found = re.findall(r"--lab-(\w+): #(\w{6})", LAB_CSS.partition(rule)[2].partition("}")[0])
    return {name: tuple(bytes.fromhex(colour)) for name, colour in found}


def luminance(colour):
    """WCAG 2.2, relative luminance."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (part / 255 for part in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_by_hand():
    assert contrast((255, 255, 255), (0, 0, 0)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(
        4.478, abs=1e-3
    )  # #777 on white is just below 4.5


@pytest.mark.parametrize("rule", [":root, body {", "body.dark, "])
@pytest.mark.parametrize("colour", ["good", "bad", "left", "right"])
def test_text_on_the_strongest_colour_is_legible(rule, colour):
    """The backgrounds of tokens, here and on the screen Reward model: 4.5 to 1 in light and dark mode, on a card."""
    strongest = int(re.search(r"--lab-strongest: (\d+)%", LAB_CSS)[1]) / 100
    colours = palette(rule)
    background = [strongest * a + (1 - strongest) * b for a, b in zip(colours[colour], colours["card"], strict=True)]
    assert contrast(colours["ink"], background) >= 4.5


@pytest.mark.parametrize("file", ["train/token_texts.js", "reward/view.css"])
def test_every_colour_behind_a_token_uses_the_strongest_share_at_most(file):
    mixed = re.findall(r"color-mix\(in srgb, .*?transparent\)", (UI / file).read_text())
    assert mixed
    assert all("var(--lab-strongest)" in one for one in mixed)


@pytest.mark.parametrize(
    ("advantages", "clipped", "expected"),
    [
        ([[0.5, -2.0, 0.0], [1.0, 0.0]], [[], []], (0, 1)),
        ([[0.5, -2.0, 0.0], [1.0, -1.5]], [[0], [1]], (1, 1)),  # of the clipped ones
        ([[0.5, math.nan, 0.0], [math.inf, -1.5]], [[], []], (1, 1)),
        ([[0.0, 0.0]], [[]], (0, 0)),
        ([], [], (0, 0)),
    ],
)
def test_it_opens_on_a_token_where_something_happened(advantages, clipped, expected):
    records = [
        SimpleNamespace(advantage=values, clipped=[index in places for index in range(len(values))])
        for values, places in zip(advantages, clipped, strict=True)
    ]
    assert notable_token(records) == expected
