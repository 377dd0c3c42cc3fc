"""RLHF Lab: label pairs of texts, watch a LoRA reward model learn, start PPO, see it happen.

Layers; a module may import only from layers below its own (tests/test_layers.py enforces it):

    app.py, __main__, cli    the two doors: the browser and the command line
    ui                       screens; no torch
    engine                   takes jobs, calls trainers, writes rows
    jobs                     submit, control and supervise; no torch
    exports                  labels, runs and models as files that other tools read; no torch
    quality                  agreement, consistency and habits of annotators; no torch
    imports                  preferences of others: files and Hub data sets into a project; no torch
    store                    tables and queries; no torch
    pretrain                 the corpus and the recipe of the embedded model
    trainers                 reward model, rollouts, policy optimisation; call back, know no database
    models                   backbone, adapters, heads, generation
    core                     pure functions on tensors
    fused                    kernels in C: what lies between matrix products, or whole layers
    judges                   simulated annotators: text -> score
    judge_files              the same of a person's own: a function out of a file
    chats                    conversations and transcripts as texts, and back
    cells                    cells of a CSV that no spreadsheet computes
    assets, home, seeds, runtime   what is shipped, where a lab lives, derived seeds, process settings
    checkpoints              which a run has, and whether one is as it was written
    precision                of a model's weights, where nobody says which; no torch
    counted                  numbers of things in words
    intervals                confidence intervals in plain arithmetic
    labelling                who labels and by which rules
    config, policy_config, settings   typed settings: those of the trainings, and what a setting is
    records                  typed rows
    passwords                hashes of passwords, and whether one fits
    errors, kinds            one exception tree, closed sets of words; import nothing of ours
"""

__version__ = "0.1.0"
