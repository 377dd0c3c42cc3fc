"""The process of the reward terms: values, errors that name the text, time limits, environment, restart."""

import json
import os
import subprocess
import sys
import time

import pytest

from rlhf_lab.errors import RewardTermError
from rlhf_lab.rewards.evaluator import REPOSITORY_ROOT, FunctionTerms
from rlhf_lab.rewards.terms import RewardTerm

SOURCE = """
import math, os, time
print("functions may print")
def both(prompt, response): return len(prompt) + 10 * len(response)
def alone(response): print("hello"); return len(response)
def batch(prompts, responses): return [len(p) + len(r) for p, r in zip(prompts, responses)]
def short_batch(prompts, responses): return [0.0]
def raises(response): return 1 / (len(response) - 3)
def gives_nan(response): return math.nan if response == "bad text" else 1.0
def gives_text(response): return "good"
def sleeps(response): return time.sleep(60 if response == "slow text" else 0) or 1.0
def ends(response): os._exit(1)
def secret(response): return float("LAB_SECRET" in os.environ)
def huge_error(response): raise ValueError("x" * 5_000_000)
def huge_int(response): return -10**400
def huge_float(response): return 1e308
def parent_environment(response):
    try:
        return float(b"LAB_SECRET" in open(f"/proc/{os.getppid()}/environ", "rb").read())
    except OSError:
        return -1.0
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    (folder / "rewards").mkdir()
    (folder / "rewards" / "mine.py").write_text(SOURCE)
    return folder


@pytest.fixture
def evaluator_of(home):
    """evaluator_of(names…): the evaluator of these functions of the file."""
    started = []

    def make(*names, **options):
        terms = [RewardTerm("own", 1.0, {"file": "mine.py", "function": name}) for name in names]
        started.append(FunctionTerms(terms, home, **options))
        return started[-1]

    yield make
    for evaluator in started:
        evaluator.close()


def test_values_of_each_form(evaluator_of, monkeypatch):
    monkeypatch.setenv("LAB_SECRET", "x")
    evaluator = evaluator_of("both", "alone", "batch", "secret")
    expected = [[21.0, 33.0], [2.0, 3.0], [3.0, 6.0], [0.0, 0.0]]
    assert evaluator.scores(["p", "ppp"], ["rr", "rrr"]) == expected
    process = evaluator._process
    assert evaluator.scores(["p", "ppp"], ["rr", "rrr"]) == expected
    assert evaluator._process is process  # one process for the whole run


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("huge_error", "failed on the response 'rr'"),
        ("huge_int", "gave too large a whole number for the response 'rr'.*not a finite number of at most 1e"),
        ("huge_float", "gave 1e.308 for the response 'rr'.*not a finite number of at most 1e"),
    ],
)
def test_an_error_is_short_and_says_what_was_wrong(evaluator_of, name, message):
    with pytest.raises(RewardTermError, match=message) as caught:
        evaluator_of(name).scores(["p"], ["rr"])
    assert len(str(caught.value)) < 1200


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_the_environment_of_the_engine_is_hidden_from_functions(home):
    """The kernel hides what belongs to a process that is not dumpable, but not from root, so for root only the flag is tested."""
    program = f"""
import ctypes, os
from pathlib import Path
from rlhf_lab.common.process_env import hide_environment
from rlhf_lab.rewards.evaluator import FunctionTerms
from rlhf_lab.rewards.terms import RewardTerm
for hide in (lambda: None, hide_environment):
    hide()
    functions = FunctionTerms([RewardTerm("own", 1.0, dict(file="mine.py", function="parent_environment"))], Path({str(home)!r}))
    value = functions.scores(["p"], ["rr"])[0][0]
    functions.close()
    print(ctypes.CDLL(None).prctl(3), value if os.geteuid() else "root")
"""
    environment = os.environ | {"LAB_SECRET": "x"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, cwd=REPOSITORY_ROOT, capture_output=True, text=True, check=False)
    expected = ["1 root", "0 root"] if os.geteuid() == 0 else ["1 1.0", "0 -1.0"]
    assert done.stdout.splitlines() == expected, done.stderr


def test_a_function_that_never_returns_ends_without_the_lab(home):
    """The process must end by itself, as after a kill of the engine."""
    terms = [("own", {"file": "mine.py", "function": "sleeps"}, str(home / "rewards" / "mine.py"))]
    lines = [json.dumps(terms), json.dumps({"prompts": ["p"], "responses": ["slow text"]})]
    for limit_s in ("2", "8", "32"):  # a busy machine may not start a process in two seconds
        ended = subprocess.run(
            [sys.executable, "-m", "rlhf_lab.rewards", limit_s], input="\n".join(lines) + "\n", capture_output=True,
            text=True, timeout=50, cwd=REPOSITORY_ROOT, check=False,
        )  # fmt: skip
        if ended.stdout:
            break
    assert json.loads(ended.stdout) == {"term": "mine.sleeps", "index": 0}
    assert ended.returncode == 1


def test_shipped_terms(home):
    evaluator = FunctionTerms([RewardTerm("json"), RewardTerm("regex", 1.0, {"pattern": "1"})], home)
    assert evaluator.scores(["", ""], ["[1]", "no"]) == [[1.0, 0.0], [1.0, 0.0]]
    evaluator.close()


@pytest.mark.parametrize(
    ("name", "response", "message"),
    [
        ("raises", "abc", r"mine\.raises failed on the response 'abc' to the prompt 'why'.*ZeroDivisionError"),
        ("gives_nan", "bad text", r"gave nan for the response 'bad text'"),
        ("gives_text", "a", r"gave 'good' for the response 'fine'"),
        ("short_batch", "a", r"gave 1 values for 2 texts"),
        ("ends", "a", r"process of the reward terms ended in mine\.ends, at the response 'fine'"),
        ("missing", "a", r"no function 'missing'"),
    ],
)
def test_errors_name_the_text(evaluator_of, name, response, message):
    with pytest.raises(RewardTermError, match=message + r"(.|\n)*nothing was lost\. Correct the function, then resume"):
        evaluator_of(name).scores(["why", "why"], ["fine", response])


def test_a_batch_that_takes_too_long_ends_and_the_next_starts_anew(evaluator_of):
    evaluator = evaluator_of("sleeps", time_limit_s=3.0)
    assert evaluator.scores(["p"], ["quick"]) == [[1.0]]
    pid, evaluator.time_limit_s = evaluator._process.pid, 0.5
    with pytest.raises(
        RewardTermError, match=r"longer than 0\.5 s for 2 texts in mine\.sleeps, at the response 'slow text'"
    ):
        evaluator.scores(["p", "p"], ["quick", "slow text"])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    evaluator.time_limit_s = 30.0
    assert evaluator.scores(["p"], ["quick"]) == [[1.0]]


def test_a_stop_while_it_waits_ends_the_process(evaluator_of):
    evaluator = evaluator_of("sleeps")
    start = time.monotonic()

    def stop():
        if time.monotonic() - start > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluator.scores(["p"], ["slow text"], stop)
    assert evaluator._process is None
