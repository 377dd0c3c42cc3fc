"""From a vote to updated figures of the instant reward model: CPU and wall time of a round, without a page or an engine.

    OPENBLAS_NUM_THREADS=1 python benchmarks/instant_reward.py --labels 500 --votes 30

A round is what the page's process does after a vote: predict it, read the labels, extend the Gram matrix, fit, and leave out each
prompt in turn. Features are random; the time depends only on their number. Prints medians and the worst, for the embedded model
and for the size of SmolLM2-135M; "opening" is the first fit after the page was started, "ridge" the choice of the ridge that
follows the figures when there are a quarter more labels.
"""

import argparse
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import NewCompletion, Pair, Vote
from rlhf_lab.jobs.instant_reward import InstantReward
from rlhf_lab.store.database import Database
from rlhf_lab.store.features import TextFeatures, add_features
from rlhf_lab.store.projects import add_completions, add_pairs, create_project, prompts
from rlhf_lab.store.votes import cast_vote

SIZES = {"embedded model, 5 x 256": (5, 256), "SmolLM2-135M, 31 x 576": (31, 576)}


class Seconds(NamedTuple):
    cpu: float
    wall: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=500)
    parser.add_argument("--votes", type=int, default=30, help="rounds that are timed")
    args = parser.parse_args()
    for name, (layers, width) in SIZES.items():
        with tempfile.TemporaryDirectory() as folder, Database.open(Path(folder)) as db:
            opening, rounds, ridge = measure(db, layers, width, args.labels, args.votes)
        cpu, wall = (sorted(times) for times in zip(*rounds, strict=True))
        print(
            f"{name}: a vote {1000 * statistics.median(cpu):.0f} ms of CPU (worst {1000 * cpu[-1]:.0f}), "
            f"{1000 * statistics.median(wall):.0f} ms (worst {1000 * wall[-1]:.0f}); "
            f"opening {1000 * opening.cpu:.0f} ms of CPU, ridge {1000 * ridge.cpu:.0f}; {2 * layers * width:,} bytes a text"
        )
    return 0


def measure(db: Database, layers: int, width: int, labels: int, votes: int) -> tuple[Seconds, list[Seconds], Seconds]:
    random = np.random.default_rng(0)
    pairs, differences = make_pairs(db, layers, width, labels + votes, random)
    direction = random.normal(size=layers * width) / (layers * width) ** 0.5
    noise = random.logistic(size=labels + votes)

    def vote(i: int) -> Vote:
        choice = Choice.FIRST if differences[i] @ direction + noise[i] > 0 else Choice.SECOND
        return cast_vote(db, Vote(str(uuid.uuid4()), pairs[i].id, "ann", Source.HUMAN, choice, True))

    for i in range(labels):
        vote(i)
    service = InstantReward(db)
    opening, rounds = timed(service.run_once), []
    model = service.model
    assert model is not None
    for i in range(labels, labels + votes):
        service.predict_vote(vote(i))
        rounds.append(timed(service.update))
    return opening, rounds, timed(model.choose_ridge)


def make_pairs(
    db: Database, layers: int, width: int, count: int, random: np.random.Generator
) -> tuple[list[Pair], np.ndarray]:
    """Pairs on prompts of their own, and their feature differences."""
    project = create_project(db, "p", "embedded", "", "tales", 0, [(f"prompt {i}", "train") for i in range(count)])
    new = [
        NewCompletion(prompt.id, f"{side} {prompt.id}", (1,), "base", 0)
        for prompt in prompts(db, project.id, "train")
        for side in "ab"
    ]
    texts = add_completions(db, new)
    vectors = random.normal(size=(2 * count, layers * width)).astype(np.float16)
    add_features(db, {text.id: TextFeatures(layers, vector) for text, vector in zip(texts, vectors, strict=True)})
    ids = [(texts[2 * i].id, texts[2 * i + 1].id, "random") for i in range(count)]
    return add_pairs(db, project.id, ids), (vectors[::2].astype(np.float32) - vectors[1::2])


def timed(function: Callable[[], object]) -> Seconds:
    cpu, wall = time.process_time(), time.perf_counter()
    function()
    return Seconds(time.process_time() - cpu, time.perf_counter() - wall)


if __name__ == "__main__":
    raise SystemExit(main())
