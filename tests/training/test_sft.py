"""Supervised fine-tuning: its loss by hand, masks, micro-batches, learning, and the folder it writes."""

import json

import pytest
import torch
from support import tiny_models

from rlhf_lab.cli.main import main
from rlhf_lab.cli.sft import read_rows
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError, ModelError, NotFiniteError, TrainingError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.batch import make_batch
from rlhf_lab.models.sampling.sampler import sample
from rlhf_lab.training import sft
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer
from rlhf_lab.training.sft import (
    SFTConfig,
    SFTExample,
    SFTRow,
    _epoch_batches,
    check_mergeable,
    encode_examples,
    response_loss,
    save_merged,
    train_sft,
)

PAIRS = [("the cat", "sat . !"), ("moon", "the dog ran"), ("the king and the frog", "sang so very old .")]


def rows(pairs):
    return [SFTRow(line, *pair) for line, pair in enumerate(pairs, 1)]


def trained(folder, dtype=torch.float32, pairs=PAIRS, **settings):
    backbone = tiny_models.load(folder, dtype)
    adapters = Adapters(backbone)
    losses = train_sft(
        backbone, adapters, encode_examples(backbone, rows(pairs)), SFTConfig(**({"lora_r": 4} | settings))
    )
    return backbone, adapters, losses


def test_responses_get_a_stop_token_and_prompts_do_not(llama_folder):
    backbone = tiny_models.load(llama_folder)
    assert encode_examples(backbone, rows(PAIRS[:1])) == [
        SFTExample(tiny_models.ids("the cat"), [*tiny_models.ids("sat . !"), tiny_models.EOS])
    ]


def test_loss_is_the_mean_over_the_response_tokens(gpt2_folder):
    """A row at a time, without padding: prompts are read, and only the responses are predicted, their end included."""
    backbone = tiny_models.load(gpt2_folder, torch.float64)
    examples = encode_examples(backbone, rows(PAIRS))
    logprobs = torch.cat([tiny_models.teacher_forced(backbone, *example) for example in examples])
    assert len(logprobs) == 4 + 4 + 6
    actual = response_loss(backbone, make_batch(backbone, *zip(*examples, strict=True)))
    assert float(actual) == pytest.approx(-float(logprobs.mean()), rel=1e-9)
    _, _, losses = trained(gpt2_folder, torch.float64, epochs=1)
    assert losses == [pytest.approx(-float(logprobs.mean()), rel=1e-9)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_any_micro_batch_gives_the_same_adapter(gpt2_folder, dtype, tolerance):
    (_, whole, first), (_, split, second) = (trained(gpt2_folder, dtype, micro_batch=size, epochs=2) for size in (8, 1))
    assert first == pytest.approx(second, rel=tolerance * 10)
    for name, tensor in whole.tensors("sft").items():
        torch.testing.assert_close(split.tensors("sft")[name], tensor, rtol=0, atol=tolerance * 10)


def test_a_whole_fine_tuning_equals_a_plain_loop(gpt2_folder):
    """Two passes of two updates, a row at a time: Adam, clipped gradients, and the rate annealed to 0."""
    settings = {
        "epochs": 2,
        "batch_size": 2,
        "lr": 1e-2,
        "max_grad_norm": 0.1,
        "micro_batch": 1,
        "lora_alpha": 8,
        "seed": 6,
    }
    backbone, actual, losses = trained(gpt2_folder, torch.float64, **settings)
    examples, config = encode_examples(backbone, rows(PAIRS)), SFTConfig(**({"lora_r": 4} | settings))
    backbone = tiny_models.load(gpt2_folder, torch.float64)
    adapters = Adapters(backbone)
    adapters.add("sft", r=4, alpha=8, seed=derive_seed(6, "sft"), trainable=True)
    parameters, expected = adapters.parameters("sft"), []
    optimiser = torch.optim.Adam(parameters)
    for batch in _epoch_batches(3, 0, config) + _epoch_batches(3, 1, config):
        loss, count = 0.0, sum(len(examples[i].response) for i in batch)
        for prompt, response in (examples[i] for i in batch):
            with adapters.using("sft"):
                table = backbone.model(input_ids=torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
            loss = loss - sum(table[len(prompt) - 1 + t, token] for t, token in enumerate(response)) / count
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.1)
        optimiser.param_groups[0]["lr"] = 1e-2 * (4 - len(expected)) / 4
        optimiser.step()
        optimiser.zero_grad()
        expected.append(float(loss.detach()))
    assert losses == pytest.approx(expected, rel=1e-8)
    for name, tensor in adapters.tensors("sft").items():
        torch.testing.assert_close(actual.tensors("sft")[name], tensor, rtol=1e-6, atol=1e-9)


def test_it_learns_the_examples_and_the_backbone_does_not_change(llama_folder):
    backbone, adapters, losses = trained(llama_folder, epochs=60, lr=1e-2, batch_size=2)
    assert len(losses) == 60 * 2
    assert losses[0] > 3
    assert losses[-1] < 0.1
    assert tiny_models.weights_hash(backbone) == tiny_models.weights_hash(tiny_models.load(llama_folder))
    assert not any(parameter.requires_grad for parameter in adapters.parameters("sft"))
    prompts = [backbone.encode_prompt(prompt) for prompt, _ in PAIRS]
    with adapters.using("sft"):
        sampled = sample(backbone, prompts, torch.full((3, 8), 0.5).double()).tokens
    assert sampled == [example.response for example in encode_examples(backbone, rows(PAIRS))]


def test_every_epoch_has_a_new_order():
    orders = [_epoch_batches(9, epoch, SFTConfig(batch_size=4)) for epoch in range(3)]
    assert [[len(batch) for batch in order] for order in orders] == [[4, 4, 1]] * 3
    flat = [[i for batch in order for i in batch] for order in orders]
    assert all(sorted(order) == list(range(9)) for order in flat)
    assert len(set(map(tuple, flat))) == 3


def test_same_seed_same_curve(llama_folder):
    assert trained(llama_folder, epochs=3, batch_size=2)[2] == trained(llama_folder, epochs=3, batch_size=2)[2]
    assert trained(llama_folder, epochs=3, batch_size=2, seed=1)[2] != trained(llama_folder, epochs=3, batch_size=2)[2]


def test_a_policy_starts_from_a_merged_folder(llama_folder, tmp_path):
    """Equal log-probabilities; the policy's KL is counted from there."""
    backbone, adapters, _ = trained(llama_folder, epochs=20, lr=1e-2)
    save_merged(backbone, adapters, "sft", tmp_path / "start")
    start = tiny_models.load(tmp_path / "start")
    for prompt, response in zip(*tiny_models.ragged(), strict=True):
        with adapters.using("sft"):
            expected = tiny_models.teacher_forced(backbone, prompt, response)
        torch.testing.assert_close(tiny_models.teacher_forced(start, prompt, response), expected, rtol=1e-4, atol=1e-4)
        with adapters.using(None):
            assert float((tiny_models.teacher_forced(backbone, prompt, response) - expected).abs().max()) > 0.01
    task = PolicyTask(tiny_models.PROMPTS, tiny_models.CountToken(tiny_models.ID["cat"]))
    metrics = PolicyTrainer(start, Adapters(start), task, PolicyConfig(**tiny_models.SMALL)).run_step().metrics
    assert abs(metrics["objective/kl"]) < 1e-4


def test_transposed_layers_are_merged_too(gpt2_folder, tmp_path):
    """GPT-2's Conv1D stores its weight as (in, out)."""
    backbone, adapters, _ = trained(gpt2_folder, epochs=20, lr=1e-2)
    before = tiny_models.weights_hash(backbone)
    save_merged(backbone, adapters, "sft", tmp_path / "start")
    assert tiny_models.weights_hash(backbone) == before
    start = tiny_models.load(tmp_path / "start")
    for prompt, response in zip(*tiny_models.ragged(), strict=True):
        with adapters.using("sft"):
            expected = tiny_models.teacher_forced(backbone, prompt, response)
        torch.testing.assert_close(tiny_models.teacher_forced(start, prompt, response), expected, rtol=1e-4, atol=1e-4)
        with adapters.using(None):
            assert float((tiny_models.teacher_forced(backbone, prompt, response) - expected).abs().max()) > 0.01


@pytest.mark.parametrize("place", ["a file", "below a file", "a folder with files"])
def test_a_folder_that_cannot_be_written_is_refused_before_training(llama_folder, tmp_path, monkeypatch, capsys, place):
    monkeypatch.setattr("rlhf_lab.cli.sft.train_sft", lambda *_, **__: pytest.fail("it trained"))
    data, taken = tmp_path / "data.jsonl", tmp_path / "taken"
    data.write_text(json.dumps({"prompt": "the cat", "response": "sat"}))
    if place == "a folder with files":
        taken.mkdir()
        (taken / "notes").write_text("mine")
    else:
        taken.write_text("mine")
    out = taken / "below" if place == "below a file" else taken
    assert main(["sft", "--model", str(llama_folder), "--data", str(data), "--out", str(out)]) == 1
    assert "Give another --out" in capsys.readouterr().err


def test_half_precision_is_refused_before_training(llama_folder):
    with pytest.raises(ModelError, match=r"Load the model in float32"):
        check_mergeable(tiny_models.load(llama_folder, torch.bfloat16))
    check_mergeable(tiny_models.load(llama_folder))


def test_half_precision_weights_cannot_be_merged(llama_folder, tmp_path):
    backbone = tiny_models.load(llama_folder, torch.bfloat16)
    adapters = Adapters(backbone)
    adapters.add("sft", r=2, alpha=4, seed=0, trainable=True)
    with pytest.raises(ModelError, match=r"Load the model in float32"):
        save_merged(backbone, adapters, "sft", tmp_path)


def test_a_gradient_that_is_not_finite_ends_the_training(llama_folder, monkeypatch):
    """Of the last update, too, after which no loss is computed."""
    backward = sft._micro_batch_backward

    def broken(backbone, *args):
        loss = backward(backbone, *args)
        next(p for p in backbone.model.parameters() if p.grad is not None).grad.fill_(float("inf"))
        return loss

    monkeypatch.setattr(sft, "_micro_batch_backward", broken)
    with pytest.raises(NotFiniteError, match="the gradient of the supervised start"):
        trained(llama_folder, epochs=1)


def test_bad_examples_are_refused(llama_folder):
    backbone = tiny_models.load(llama_folder)
    with pytest.raises(TrainingError, match="no examples"):
        encode_examples(backbone, [])
    with pytest.raises(TrainingError, match="no examples"):
        train_sft(backbone, Adapters(backbone), [], SFTConfig())
    with pytest.raises(ModelError, match="does not fit the model's context"):
        train_sft(backbone, Adapters(backbone), [SFTExample([1], [2] * 70)], SFTConfig())
    backbone.model.get_output_embeddings().weight.data.fill_(float("nan"))
    examples = encode_examples(backbone, rows(PAIRS))
    with pytest.raises(NotFiniteError, match="supervised start became NaN"):
        train_sft(backbone, Adapters(backbone), examples, SFTConfig())


def test_command_line(llama_folder, tmp_path, capsys, monkeypatch):
    """Whatever dtype the environment sets for other commands."""
    monkeypatch.setenv("RLHF_LAB_DTYPE", "bfloat16")
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    data.write_text("".join(json.dumps({"prompt": p, "response": r}) + "\n\n" for p, r in PAIRS))
    words = ["sft", "--model", str(llama_folder), "--data", str(data), "--out", str(out), "--json"]
    assert main([*words, "--epochs", "30", "--lr", "0.01"]) == 0
    messages = json.loads(capsys.readouterr().out)
    assert (messages["examples"], messages["updates"]) == (3, 30)
    assert messages["last_loss"] < messages["first_loss"] / 2
    assert tiny_models.weights_hash(tiny_models.load(out)) != tiny_models.weights_hash(tiny_models.load(llama_folder))
    assert main(words) == 1
    assert "is not empty" in json.loads(capsys.readouterr().out)["error"]


def write_lines(path, pairs, end="\n"):
    lines = [json.dumps({"prompt": prompt, "response": text}, ensure_ascii=False) for prompt, text in pairs]
    path.write_bytes("".join(line + end for line in lines).encode())


def test_every_row_is_checked_before_the_training(llama_folder, tmp_path, capsys, monkeypatch):
    """The context has 48 tokens: "the cat" and 45 words with the stop token are exactly these. Line 3 is empty."""
    monkeypatch.setattr("rlhf_lab.cli.sft.train_sft", lambda *_, **__: pytest.fail("it trained"))
    data = tmp_path / "data.jsonl"
    fits, too_long = ("the cat", "sat " * 45), ("the cat", "sat " * 46)
    backbone = tiny_models.load(llama_folder)
    assert backbone.context_length == 48
    assert sum(map(len, encode_examples(backbone, rows([fits]))[0])) == 48
    pairs = [fits, too_long, fits, too_long, fits, ("moon", backbone.tokenizer.eos_token)]
    write_lines(data, pairs)
    lines = data.read_bytes().split(b"\n")
    data.write_bytes(b"\n".join([*lines[:2], b"", *lines[3:]]))
    command = ["sft", "--model", str(llama_folder), "--data", str(data), "--out", str(tmp_path / "out")]
    assert main(command) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "3 examples of 5 cannot be used. line 2, 4: longer than the model's context of 48 tokens" in error
    assert "line 6: the response has only stop tokens" in error


def test_a_prompt_that_the_model_refuses_is_named(llama_folder, monkeypatch):
    backbone = tiny_models.load(llama_folder)

    def refuse(text):
        raise ModelError(f"no prompt {text}.")

    monkeypatch.setattr(backbone, "encode_prompt", refuse)
    with pytest.raises(TrainingError, match=r"1 example of 1 cannot be used\. line 7: no prompt moon\. Shorten"):
        encode_examples(backbone, [SFTRow(7, "moon", "sat")])


def test_bad_lines_are_refused(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(
        '{"prompt": "a", "response": "b"}\nnot json\n{"prompt": "a"}\n[]\n{"prompt": "a", "response": " "}\n'
    )
    with pytest.raises(ConfigError, match=r"4 lines of bad.jsonl cannot be used: 2, 3, 4, 5\. Each needs"):
        read_rows(path)
    path.write_text('{"prompt": "a", "response": "\\ud800"}\n' * 7)
    with pytest.raises(ConfigError, match=r"7 lines of bad.jsonl cannot be used: 1, 2, 3, 4, 5, …\. Each"):
        read_rows(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_rows(tmp_path / "missing.jsonl")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_separators_within_a_text_end_no_line(tmp_path, end):
    """JSON escapes neither of these, and Python's splitlines splits at all of them."""
    path, marks = tmp_path / "data.jsonl", "\u2028\u2029\x85"
    write_lines(path, [("a", f"b{marks}c"), (f"{marks}d", "e")], end)
    assert read_rows(path) == [SFTRow(1, "a", f"b{marks}c"), SFTRow(2, f"{marks}d", "e")]
    path.write_bytes(path.read_bytes() + b"{}")
    with pytest.raises(ConfigError, match=r"1 line of data.jsonl cannot be used: 3\."):
        read_rows(path)
