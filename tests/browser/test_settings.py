"""The settings of a new run: folded groups, and an algorithm that fills in what goes well with it."""

import re

from rlhf_lab.config import PolicyConfig


def test_choosing_an_algorithm_fills_in_its_settings(lab, open_page):
    page = open_page(lab)
    page.get_by_role("tab", name="Train", exact=True).click()
    shown = "document.querySelector('#start-settings').style.setProperty('display', 'block', 'important')"
    page.locator("#start-settings").wait_for(state="attached")
    page.evaluate(shown)  # else only once there is a reward model
    page.get_by_role("button", name="All settings of the new run").click()
    groups = page.locator("[id^=start-group-]")
    groups.first.wait_for()
    assert [groups.nth(i).get_attribute("id") for i in range(groups.count())] == [
        f"start-group-{name}"
        for name in ("run", "rollouts", "reward", "kl", "advantages", "policy-loss", "value", "lora")
    ]
    for name in ("Run", "Rollouts"):
        page.locator(f"#start-group-{name.lower()} button", has_text=re.compile(f"^{name}")).first.click()
    page.locator("#start-algorithm input").click()
    page.get_by_role("option", name="rloo", exact=True).click()
    recommended = PolicyConfig.of("rloo")
    for name in ("group_size", "epochs", "minibatches", "batch_size"):
        page.wait_for_function(
            "([name, value]) => document.querySelector(`#start-${name} textarea, #start-${name} input`)?.value === value",
            arg=[name, str(getattr(recommended, name))],
        )
