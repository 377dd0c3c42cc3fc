"""What leaves a lab: labels, a run's numbers and texts, adapters, reward models. Files that other tools read; no torch here.

    export_labels         labels-project-1.jsonl                TRL's preference format, and what else is known of a vote
    export_dataset        labels-project-1/                     the same as a data set: data, card, provenance
    push_folder           OWNER/NAME on the Hub                 a folder that was exported
    export_run            all of these for one run:
      export_metrics        run-1-metrics.csv                   a row a step
      export_samples        run-1-samples.jsonl                 what it wrote for the fixed prompts
      export_manifest       run-1-manifest.json                 how it came about
      export_tensorboard    tensorboard/run-1/events.out.…      the same numbers and texts for TensorBoard
      export_adapter        run-1-step-000040.zip               the policy as PEFT loads it
    export_reward_model   reward-model-1.zip                    adapter, head and report

Each takes the folder to write to and returns what it wrote. Files appear whole or not at all, and one that is there is
replaced only with force=True; StoreError says what went wrong. Of a run that goes on, what is known now is written.
"""

from rlhf_lab.exporters.adapter_zip import export_adapter, export_reward_model
from rlhf_lab.exporters.dataset_folder import export_dataset
from rlhf_lab.exporters.hub_upload import push_folder
from rlhf_lab.exporters.label_export import FORMATS, LAYOUTS, TIES, LabelExportOptions, export_labels
from rlhf_lab.exporters.run_export import (
    export_manifest,
    export_metrics,
    export_run,
    export_samples,
    export_tensorboard,
)

__all__ = [
    "FORMATS",
    "LAYOUTS",
    "TIES",
    "LabelExportOptions",
    "export_adapter",
    "export_dataset",
    "export_labels",
    "export_manifest",
    "export_metrics",
    "export_reward_model",
    "export_run",
    "export_samples",
    "export_tensorboard",
    "push_folder",
]
