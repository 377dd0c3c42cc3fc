"""The engine: a process that takes jobs from the store, calls the trainers, and writes rows and checkpoints."""
