"""The mathematics: tensors in, tensors out. No files, no randomness, no modules, no device moves."""
