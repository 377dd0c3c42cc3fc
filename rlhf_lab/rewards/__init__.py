"""Reward terms: functions (prompt, response) -> float that a run adds to, or uses instead of, a reward model's score.

terms.py says which terms a run has, builtin.py are the shipped functions, evaluator.py runs them in a process of their own.
"""
