"""Policies that learn from fixed texts: labels (dpo, sft), or the best of several samples (rejection)."""
