"""Export of labels, runs, adapters and reward models as files that other tools read. No torch here.

    label_export     labels-project-1.jsonl         TRL's preference format, plus all that is known of a vote
    dataset_folder   labels-project-1/              the same as a data set: data, card, provenance
    hub_upload       OWNER/NAME on the Hub          an exported folder
    run_export       run-1-metrics.csv              one row per step
                     run-1-samples.jsonl            the responses to the fixed prompts
                     run-1-tokens.jsonl             every number of the recorded tokens (docs/FORMATS.md)
                     run-1-manifest.json            config, environment, events, reward model
    adapter_zip      run-1-step-000040.zip          the policy adapter as PEFT loads it
                     reward-model-1.zip             adapter, head and report
    merged_model     run-1-step-000040-model/       the policy as a model folder, the adapter merged into the weights
    modelfile        run-1-step-…/Modelfile         with which Ollama serves that folder
    policy_card, reward_model_card, dataset_card    README.md of each; card_parts: what they share

Each export function takes the folder to write to and returns the paths it wrote. Files appear whole or not at all; existing ones
are replaced only with force=True, else StoreError. The export of a running run contains what is known now.
"""
