"""Reward terms: functions (prompt, response) -> float that a run adds to, or uses instead of, a reward model's score.

terms.py defines and parses the terms of a run, builtin.py has the shipped functions, evaluator.py runs functions in a separate
process.
"""
