"""What a model is: its config, its tensors, its checkpoint, its mathematics. No engine."""
