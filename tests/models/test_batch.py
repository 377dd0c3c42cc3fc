"""Batches: positions where a response is predicted and read, padding, masks. Expected: one row at a time, no padding."""

from types import SimpleNamespace

import pytest
import torch
from support import tiny_models

from rlhf_lab.errors import ModelError
from rlhf_lab.models.batch import Batch, forward, make_batch, map_by_length


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_logits_slice(folders, kind):
    """Each response token's logits are those of the position before it."""
    backbone = tiny_models.load(folders[kind], torch.float64)
    prompts, responses = [tiny_models.ids("the cat")], [tiny_models.ids("sat very old . <eos>")]
    with torch.no_grad():
        logits = backbone.logits(forward(backbone, make_batch(backbone, prompts, responses)).before_token)
    expected = tiny_models.all_logits(backbone, prompts[0], responses[0])
    assert logits.shape == (1, 5, len(tiny_models.WORDS))
    torch.testing.assert_close(logits[0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_left_padding_shifts_no_position(folders, kind):
    """Rows of different prompt lengths in one batch equal the rows alone; GPT-2's absolute positions show a shift."""
    backbone = tiny_models.load(folders[kind], torch.float64)
    prompts, responses = tiny_models.ragged()
    with torch.no_grad():
        logits = backbone.logits(forward(backbone, make_batch(backbone, prompts, responses)).before_token)
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        expected = tiny_models.all_logits(backbone, prompt, response)
        torch.testing.assert_close(logits[i, : len(response)], expected, rtol=1e-9, atol=1e-9)


def test_masks_come_from_lengths(gpt2_folder):
    """Pad is EOS here: a sampled EOS stays in the mask, the pads after it do not, and EOS may be the whole response."""
    backbone = tiny_models.load(gpt2_folder)
    assert backbone.pad_id == tiny_models.EOS == backbone.eos_ids[0]
    rows = make_batch(backbone, [[9], [9, 10], [9]], [[tiny_models.EOS], [20, 21, tiny_models.EOS], [20, 21, 22]])
    assert rows.prompts.tolist() == [[tiny_models.EOS, 9], [9, 10], [tiny_models.EOS, 9]]
    assert rows.prompt_mask.tolist() == [[0, 1], [1, 1], [0, 1]]
    assert rows.responses.tolist() == [[tiny_models.EOS] * 3, [20, 21, tiny_models.EOS], [20, 21, 22]]
    assert rows.mask.tolist() == [[True, False, False], [True, True, True], [True, True, True]]
    assert rows.ended.tolist() == [True, True, False]
    assert rows.lengths.tolist() == [[1, 1], [2, 3], [1, 3]]
    assert [part.tolist() for part in rows.response_indices] == [[0, 1, 1, 1, 2, 2, 2], [0, 0, 1, 2, 0, 1, 2]]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_dropout_is_off(folders, kind):
    """Both configs have dropout 0.5, but the backbone and an adapter are deterministic."""
    backbone = tiny_models.load(folders[kind])
    rows = make_batch(backbone, *tiny_models.ragged())
    assert torch.equal(forward(backbone, rows).at_token, forward(backbone, rows).at_token)
    adapters = tiny_models.adapters_of(backbone, "policy")
    for name in (None, "policy"):
        with adapters.using(name):
            first, second = forward(backbone, rows), forward(backbone, rows)
        assert torch.equal(first.before_token, second.before_token)
        assert torch.equal(first.at_token, second.at_token)
    assert not [module for module in backbone.model.modules() if module.training]


def test_any_stop_token_ends_a_response(tmp_path):
    """The generation config names another stop token than the tokenizer: both end a response."""
    tiny_models.set_generation_config(tiny_models.save_llama(tmp_path), eos_token_id=[tiny_models.STOP])
    backbone = tiny_models.load(tmp_path)
    assert set(backbone.eos_ids) == {tiny_models.EOS, tiny_models.STOP}
    rows = make_batch(
        backbone, [[9]] * 4, [[20, tiny_models.STOP], [20, tiny_models.EOS], [20, 21], [tiny_models.STOP, 20]]
    )
    assert rows.ended.tolist() == [True, True, False, False]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_predict_only_does_not_read_the_last_token(folders, kind, monkeypatch):
    backbone = tiny_models.load(folders[kind], torch.float64)
    prompts, responses = tiny_models.ragged()
    rows = make_batch(backbone, prompts, responses)
    with torch.no_grad():
        whole, short = forward(backbone, rows), forward(backbone, rows, predict_only=True)
    longest, shortest = max(map(len, map(list.__add__, prompts, responses))), min(map(len, prompts))
    assert short.states.shape[1] == whole.states.shape[1] - 1 == longest - 1 - (shortest - 1)
    torch.testing.assert_close(short.before_token[rows.mask], whole.before_token[rows.mask], rtol=1e-12, atol=1e-12)
    one = make_batch(backbone, [[9]], [[20]])
    assert forward(backbone, one, predict_only=True).before_token.shape == (1, 1, backbone.hidden_size)


def test_at_token(gpt2_folder):
    backbone = tiny_models.load(gpt2_folder, torch.float64)
    prompts, responses = tiny_models.ragged()
    with torch.no_grad():
        read = forward(backbone, make_batch(backbone, prompts, responses)).at_token
        for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            alone = backbone.trunk(input_ids=torch.tensor([[*prompt, *response]])).last_hidden_state[0, len(prompt) :]
            torch.testing.assert_close(read[i, : len(response)], alone, rtol=1e-9, atol=1e-9)


def test_select_trims_to_its_longest_rows(llama_folder):
    backbone = tiny_models.load(llama_folder)
    prompts, responses = tiny_models.ragged()
    selected = make_batch(backbone, prompts, responses).select(torch.tensor([4, 0]))
    expected = make_batch(backbone, [prompts[4], prompts[0]], [responses[4], responses[0]])
    assert isinstance(selected, Batch)
    for part, expected_part in zip(selected, expected, strict=True):
        assert torch.equal(part, expected_part)


def test_unreadable_rows_are_refused(llama_folder):
    backbone = tiny_models.load(llama_folder)
    make_batch(backbone, [[9] * 40], [[9] * 8])
    with pytest.raises(ModelError, match="49 tokens does not fit the model's context of 48"):
        make_batch(backbone, [[9] * 40], [[9] * 9])
    with pytest.raises(ModelError, match="response has no tokens"):
        make_batch(backbone, [[9], [9]], [[9], []])
    with pytest.raises(ModelError, match="prompt has no tokens"):
        make_batch(backbone, [[9], []], [[9], [9]])


def test_map_by_length_keeps_the_order_and_groups_similar_lengths():
    lengths, calls = [5, 1, 4, 2, 3], []
    backbone = SimpleNamespace(token_budget=6, sync_pass_count=lambda count: count, batch_splits=1, shards=None)

    def function(index):
        calls.append(index)
        return torch.tensor([10.0 * i for i in index])

    assert map_by_length(function, lengths, backbone).tolist() == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert calls == [[1, 3], [4], [2], [0]]  # 2 rows x 2 tokens; 2 x 4 would be more than 6
    for most, expected in ((3, 5), (60, 4)):
        calls.clear()
        assert map_by_length(function, lengths, backbone, most).tolist() == [0.0, 10.0, 20.0, 30.0, 40.0]
        assert len(calls) == expected
    calls.clear()
    backbone.token_budget = 1
    assert map_by_length(function, lengths, backbone).tolist() == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert [len(batch) for batch in calls] == [1] * 5
    calls.clear()
    backbone.sync_pass_count = lambda count: (
        count + 2
    )  # another process has more batches, and needs this process at each of its passes
    assert map_by_length(function, lengths, backbone).tolist() == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert len(calls) == 7
