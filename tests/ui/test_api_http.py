"""Labelling by a program over HTTP, with gradio_client and a served page."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: In a separate process, because Gradio's server and client leave sockets and loops open.
PROGRAM = """
import json, os, sys
from pathlib import Path
import gradio as gr
from gradio_client import Client
from rlhf_lab.ui import http_api
from rlhf_lab.ui.context import Context

ctx = Context.open(Path(sys.argv[1]))
with gr.Blocks() as page:
    http_api.build(ctx)
_, url, _ = page.queue(api_open=False).launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1")
lab = Client(url, verbose=False)
pair = lab.predict(name="tool", code="", api_name="/next_pair")
vote = {"name": "tool", "pair_id": pair["id"], "choice": "left", "uuid": "u-1", "strength": "clearly"}
taken = [lab.predict(**vote, api_name="/submit_vote") for _ in range(2)]
status = lab.predict(api_name="/status")
endpoints = lab.view_api(return_format="dict", print_info=False)["named_endpoints"]
print("RESULT " + json.dumps([pair, taken, status, endpoints]), flush=True)
os._exit(0)
"""


def test_a_program_asks_votes_and_sees_its_vote_counted_and_the_types_are_told(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "home")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    pair, (first, again), status, endpoints = json.loads(lines[0].removeprefix("RESULT "))

    assert pair["id"] and pair["left"] != pair["right"]  # noqa: PT018  an id, and two texts
    assert (first["counted"], first["uuid"], first["why"]) == (True, "u-1", "")
    assert again == first
    assert status["labels"] == 1

    assert set(endpoints) == {"/next_pair", "/submit_vote", "/status"}
    takes = {one["parameter_name"]: one["type"] for one in endpoints["/submit_vote"]["parameters"]}
    assert takes["choice"] == {"enum": ["left", "right", "tie", "both_bad", "skip"]}
    assert takes["strength"] == {"enum": ["", "slightly", "clearly", "much"]}
    assert takes["pair_id"] == {"type": "integer"}
    gives = {name: set(one["returns"][0]["type"]["properties"]) for name, one in endpoints.items()}
    assert gives == {"/next_pair": set(pair), "/submit_vote": set(first), "/status": set(status)}
