"""What trainers on torch have in common: how a batch is cut, its loss, model folders, checkpoints, ranks."""
