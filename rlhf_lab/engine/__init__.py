"""The engine: takes jobs from the store, calls the trainers, writes rows and checkpoints."""
