"""A lab with one project on a tiny model and a worker in this process, which runs only the jobs that a test gives it."""

import uuid

from support import tiny_models

from rlhf_lab.common.enums import Choice, JobKind, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.engine.pair_sampling import PairRequest, sample_pairs
from rlhf_lab.engine.worker import Worker
from rlhf_lab.jobs import queue
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import create_project, current_project
from rlhf_lab.store.reward_models import latest_reward_model
from rlhf_lab.store.run_metrics import metrics_since
from rlhf_lab.store.runs import create_run
from rlhf_lab.store.votes import cast_vote

CONFIG = tiny_models.SMALL | {"steps": 5, "checkpoint_every": 2, "kl_controller": "fixed"}
REWARD = {"folds": 0, "epochs": 1, "lora_r": 4}


class Lab:
    """Opens the lab of a folder; with a model, creates it."""

    def __init__(self, folder, model=None):
        self.folder, self.db = folder, Database.open(folder)
        if model is None:
            self.project = current_project(self.db)
        else:
            digest = load_backbone(str(model), device="cpu").digest
            texts = [(text, "train") for text in tiny_models.PROMPTS] + [("a good bird", "eval"), ("the moon", "eval")]
            self.project = create_project(self.db, "tiny", str(model), digest, "tiny", 3, texts)
        self.next_engine()

    def next_engine(self):
        self.worker = Worker(self.folder, self.db)
        self.worker.model_cache.device = "cpu"

    def submit(self, kind, project_id=None, **payload):
        return queue.submit(self.db, kind, project_id or self.project.id, payload)

    def do(self, job):
        """Let the worker take exactly this job."""
        claimed = queue.claim(self.db, [job.kind], self.worker.engine_id)
        assert claimed is not None
        assert claimed.id == job.id
        self.worker.run_job(claimed)
        return queue.get_job(self.db, job.id)

    def label(self, count=12):
        for i, pair in enumerate(sample_pairs(self.worker.model_cache, self.project, PairRequest(count))):
            choice = Choice.FIRST if i % 3 else Choice.SECOND
            cast_vote(self.db, Vote(str(uuid.uuid4()), pair.id, "judge:x", Source.SIMULATED, choice, True))

    def train_reward(self, **changes):
        return self.do(self.submit(JobKind.TRAIN_REWARD, source="simulated", config=REWARD | changes))

    def run(self, **changes):
        config = CONFIG | changes
        model = latest_reward_model(self.db, self.project.id)
        run = create_run(
            self.db, self.project.id, model.id, "r", config=config, manifest={}, total_steps=config["steps"]
        )
        return run.id

    def train(self, run_id):
        return self.do(self.submit(JobKind.TRAIN_POLICY, run_id=run_id))

    def curve(self, run_id):
        return [(step, tiny_models.numbers(actual)) for step, actual in metrics_since(self.db, run_id, 0)]
