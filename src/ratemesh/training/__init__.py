"""What the algorithms are built from: the one training loop, couplings, and the contract with the engines."""
