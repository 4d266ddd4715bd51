"""What travels between nodes: class statistics as named tensors, their codecs, and the checks of what arrives."""
