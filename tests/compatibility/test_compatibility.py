"""A home of an earlier version opens, reports the same, resumes its paused run to the same numbers, and is shown by the page.

homes/REVISION/ has the home.tar.gz of a schema revision, made with the code of the commit `made_by`, and expected.json, what
that commit reported about it: 0009 is version 0.1.0, 0018 the first commit with that schema after version 0.2.0, and 0021 is
version 0.3.0. None is ever regenerated. The test uses only commands, exported files and some database tables, so it does not
depend on names inside the package. On the machine of expected.json (processor, torch, compiler) numbers must be equal bit for
bit; elsewhere matrix products round differently, and TOLERANCE is the allowed difference.
"""

import contextlib
import csv
import hashlib
import json
import math
import os
import platform
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections import Counter
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOMES = sorted((HERE / "homes").iterdir())
#: The oldest and the newest home; for tests that take long, those between are slow ones.
ENDS = pytest.mark.parametrize(
    "fixture_folder",
    [
        pytest.param(folder, id=folder.name, marks=() if folder in (HOMES[0], HOMES[-1]) else pytest.mark.slow)
        for folder in HOMES
    ],
    indirect=True,
)
FINISHED, PAUSED = 1, 2
#: Of the recorded runs; some metrics are sums over threads.
THREADS = 2
#: Allowed difference of a resumed run on another machine. Measured without kernels, and with AVX2: at most 0.00001.
TOLERANCE = {"rel_tol": 1e-3, "abs_tol": 1e-4}
#: Counts values whose two losses differ, by rounding alone: no tolerance covers one more or less of them.
COUNTED = "val/clipfrac_avg"
#: Metrics that depend on speed and memory of the machine; eps: episodes per second.
MACHINE_METRICS = ("time/", "memory/", "eps")

#: What no command reports.
QUERIES = {
    "projects": "SELECT id, prompt_set, temperature, max_new_tokens, system_prompt, template_arguments FROM projects ORDER BY id",
    "blind": "SELECT test_id, annotator, position, choice FROM blind_votes ORDER BY 1, 2, 3",
    "tournaments": "SELECT tournament_id, annotator, position, first, second, choice FROM tournament_answers ORDER BY 1, 2, 3, 4",
    "gold pairs": "SELECT id, gold FROM pairs WHERE gold IS NOT NULL ORDER BY id",
}

#: Environment variables that choose how the processor computes.
SETTINGS = ("RLHF_LAB_KERNELS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")

#: Runs several commands in one process, because each process imports torch. A failed command does not stop the others.
COMMANDS = """
import contextlib, io, json, runpy, sys

results = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["rlhf_lab", *arguments]
    output, status = io.StringIO(), 0
    with contextlib.redirect_stdout(output):
        try:
            runpy.run_module("rlhf_lab", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code or 0
    results.append([status, output.getvalue()])
print("RESULT " + json.dumps(results), flush=True)
"""

#: Queries a served page, in a separate process because Gradio's client leaves sockets open.
CLIENT = """
import json, os, sys, urllib.error, urllib.request
from gradio_client import Client

url, run = sys.argv[1:]

def fetch(path, data=None):
    request = urllib.request.Request(url + path, data and json.dumps(data).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError:
        return ""

lab = Client(url, verbose=False)
before = lab.predict(api_name="/status")
pair = lab.predict(name="compatibility", code="", api_name="/next_pair")
vote = {"name": "compatibility", "pair_id": pair["id"], "choice": "left", "uuid": "compatibility-1"}
taken = lab.predict(**vote, api_name="/submit_vote")
after = lab.predict(api_name="/status")
print("RESULT " + json.dumps({
    "project": before["project"], "labels": before["labels"], "simulated": before["simulated"],
    "counted": taken["counted"], "more": after["labels"] - before["labels"],
    "run_shown": json.dumps(run) in fetch("lab-api/train/points", {"run": None}),
}), flush=True)
os._exit(0)
"""


def environment():
    """The environment without the settings of a user's own lab; the choice of kernels is kept."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RLHF_LAB_STORE", "RLHF_LAB_DTYPE", "RLHF_LAB_HOME")
    }
    return inherited | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(THREADS)}


def lab(home, *commands, root=ROOT):
    """The --json output of each command, given by its arguments."""
    command_lines = [[*map(str, arguments), "--home", str(home), "--json"] for arguments in commands]
    results = result([sys.executable, "-c", COMMANDS, json.dumps(command_lines)], root)
    for arguments, (status, output) in zip(command_lines, results, strict=True):
        assert status == 0, f"{' '.join(arguments)}: {output}"
    return [json.loads(output) for _, output in results]


def result(command, root):
    """The JSON that a program prints after RESULT."""
    done = subprocess.run(
        command, cwd=root, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[0].removeprefix("RESULT "))


def extract_home(folder, archive):
    """A copy of a home in a new folder."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return Path(folder) / "home"


def lab_state(home, root=ROOT):
    """What commands report about a home, without changing it."""
    folder = home.parent
    names = ("runs", "people", "imports")
    exports = (
        ("export", "labels", "--source", "all", "--layout", "votes", "--out", folder / "labels"),
        ("export", "run", FINISHED, "--out", folder / "run"),
    )
    *results, _, _ = lab(home, *([name] for name in names), *exports, root=root)
    return dict(zip(names, results, strict=True)) | {
        "labels": labels(folder / "labels"),
        "finished run": history(folder / "run"),
        **{name: query(home, sql) for name, sql in QUERIES.items()},
    }


def labels(folder):
    """Label counts by source and annotator, and a digest of all preferences."""
    (file,) = folder.iterdir()
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    texts = sorted([row["source"], row["annotator"], row["prompt"], row["chosen"], row["rejected"]] for row in rows)
    return {
        "source": dict(Counter(row["source"] for row in rows)),
        "annotator": dict(Counter(row["annotator"] for row in rows)),
        "digest": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
    }


def history(folder):
    """An exported run: metrics of every step, samples, and a digest of its newest adapter."""
    from safetensors.numpy import load

    with next(folder.glob("*metrics.csv")).open(encoding="utf-8", newline="") as file:
        steps = {row.pop("step"): parse_row(row) for row in csv.DictReader(file)}
    samples = next(folder.glob("*samples.jsonl")).read_text(encoding="utf-8").splitlines()
    with zipfile.ZipFile(next(folder.glob("*.zip"))) as adapter:
        tensors = load(adapter.read("adapter_model.safetensors"))
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode() + tensor.tobytes())
    return {"steps": steps, "samples": [json.loads(line) for line in samples], "adapter": digest.hexdigest()}


def parse_row(row):
    """Exact, because exports write repr of each float."""
    return {name: float(text) for name, text in row.items() if text}


def query(home, sql):
    with closing(sqlite3.connect(home / "lab.db", timeout=20)) as db:
        return [list(row) for row in db.execute(sql)]


def resume_paused_run(home, root=ROOT):
    """Resume the paused run to its end: the output of the command, and its history, later steps without timings."""
    folder = home.parent / "resumed"
    ((paused_at,),) = query(home, f"SELECT step FROM runs WHERE id = {PAUSED}")
    results, *_ = lab(
        home,
        ["train-policy", "--resume", PAUSED],
        ["export", "run", PAUSED, "--out", folder],
        ["stop-engine"],
        root=root,
    )
    run = history(folder)
    later = {step: row for step, row in run["steps"].items() if int(step) > paused_at}
    return {
        "run": {name: results[name] for name in ("run_id", "status", "step")},
        "before": {step: row for step, row in run["steps"].items() if step not in later},
        "later": {step: without_timings(row) for step, row in later.items()},
        "samples": run["samples"],
        "adapter": run["adapter"],
    }


def without_timings(row):
    return {name: value for name, value in row.items() if not name.startswith(MACHINE_METRICS)}


def open_page(home, run, root=ROOT):
    """Open the page on a home: replies to a client that votes once, and whether the page shows a run's name."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    command = [sys.executable, "app.py", "--home", str(home), "--port", str(port)]
    with (home.parent / "page.txt").open("wb") as output:
        served = subprocess.Popen(command, cwd=root, env=environment(), stdout=output, stderr=subprocess.STDOUT)
    try:
        html = wait_for_page(url, served)
        results = result([sys.executable, "-c", CLIENT, url, run], root)
    finally:
        served.send_signal(signal.SIGINT)
        try:
            served.wait(20)
        except subprocess.TimeoutExpired:
            served.kill()
            served.wait()
        lab(home, ["stop-engine"], root=root)
    return {"titled": "RLHF Lab" in html} | results


def wait_for_page(url, served):
    until = time.monotonic() + 300
    while time.monotonic() < until and served.poll() is None:
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=20) as answer:
            return answer.read().decode()
        time.sleep(0.1)
    raise AssertionError("the page was not served within five minutes, or its process ended")


def machine():
    """Everything that affects rounding, read without code of the package."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(errors="replace").splitlines() if cpuinfo.exists() else []
    info = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = hashlib.sha256(" ".join(sorted(info.get("flags", "").split())).encode()).hexdigest()[:16]
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    results = (
        subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout if compiler else ""
    )
    return {
        "machine": platform.machine(),
        "processor": f"{info.get('vendor_id')} family {info.get('cpu family')} model {info.get('model')}, flags {flags}",
        "torch": version("torch"),
        "compiler": next(iter(results.splitlines()), "none"),
        "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
    }


@pytest.fixture(params=HOMES, ids=lambda folder: folder.name)
def fixture_folder(request):
    return request.param


@pytest.fixture
def expected(fixture_folder):
    return json.loads((fixture_folder / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture
def home(fixture_folder, tmp_path):
    return extract_home(tmp_path, fixture_folder / "home.tar.gz")


def test_home_opens_and_reports_the_same(home, expected):
    now = lab_state(home)
    assert set(now) == set(expected["state"])
    assert all(now[name] for name in ("runs", "people", "imports", "labels", "projects", "blind"))
    for name, before in expected["state"].items():
        assert without_later_keys(now[name], before) == before, name


def without_later_keys(now, before):
    """`now` without the keys that later versions have added to its records."""
    if isinstance(now, dict) and isinstance(before, dict):
        return {key: without_later_keys(now[key], before[key]) for key in before}
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        return [without_later_keys(*pair) for pair in zip(now, before, strict=True)]
    return now


@ENDS
def test_paused_run_resumes_to_the_same_numbers(home, expected):
    before, now = expected["resumed"], resume_paused_run(home)
    assert now["run"] == before["run"]
    assert now["run"]["status"] == "done"
    assert now["before"] == before["before"]  # timings too: no step before the pause ran again
    assert now["later"].keys() == before["later"].keys()
    exact = machine() == expected["machine"]
    differing = {
        (step, name): (now["later"][step].get(name), value)  # later versions add metrics
        for step, row in before["later"].items()
        for name, value in row.items()
        if not agree(name, now["later"][step].get(name), value, exact)
    }
    assert not differing, f"on {machine()}, expected {expected['machine']}"
    if exact:
        assert without_later_keys(now["samples"], before["samples"]) == before["samples"]
        assert now["adapter"] == before["adapter"]


def agree(name, value, expected, exact):
    if exact or value is None:
        return value == expected
    return name == COUNTED or math.isclose(value, expected, **TOLERANCE)


@ENDS
def test_page_opens_on_the_home(home, expected):
    assert open_page(home, "a finished run") == expected["page"]
    assert expected["page"]["run_shown"]
