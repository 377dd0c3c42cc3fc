"""RLHF Lab: label pairs of texts, watch a LoRA reward model learn, start PPO, see it happen.

A package imports only from packages below it. import-linter checks this (pyproject.toml, tests/test_architecture.py), and that
no cycle exists inside a package.

    app.py, __main__, cli     the browser and the command line
    ui                        the page: screens, services, authentication. No torch
    engine                    background process: takes jobs, calls training, writes results to the store
    jobs                      job queue, engine supervision, run control, model downloads. No torch
    backup                    snapshots of a home, and their archives. No torch
    exporters                 labels, runs and models as files for other tools. No torch
    importers                 preferences from files and Hub datasets. No torch
    quality                   agreement and consistency of annotators. No torch
    store                     database tables and queries. No torch
    api                       the Python API: a trainer for scripts. Knows no database
    embedded_model            grammar, corpus and pretraining recipe of the bundled model
    training                  reward model, rollouts, policy optimization. Knows no database
    rewards                   reward functions and the process that evaluates them. No torch
    judges                    simulated annotators: text -> score. No torch
    models                    backbone, LoRA adapters, heads, sampling
    kernels                   C kernels with PyTorch fallbacks
    core                      losses, advantages, KL, log-probabilities: pure functions on tensors
    config                    typed settings of trainings and labelling. No torch
    common                    enums, records, seeding, statistics, paths, atomic files. No torch
    errors                    one exception hierarchy
"""

from rlhf_lab.common.storage import keep_models_on_storage

__version__ = "0.3.1"

keep_models_on_storage()  # before any module imports huggingface_hub
