"""From a configuration to a run folder (the layer called "run"; `ratemesh.run` is its main function)."""
