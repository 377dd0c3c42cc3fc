"""How the embedded model is made: a generated corpus, a tokenizer and a small Llama (`python -m rlhf_lab pretrain`).

grammar, tales, support, reviews       phrase files -> prompts and responses
corpus                                 the three prompt sets as one corpus (also the default texts of PPO-ptx)
grammar_parser, grammar_parser_rules   could the grammar have generated a text?
allowed_tokens, auxiliary_losses       losses beyond the next token
batching, train                        batches, and the training passes
sample_checks, model_card              measurements of samples, and the model card
"""
