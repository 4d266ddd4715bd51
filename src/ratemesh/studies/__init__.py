"""Commands that run several experiments and say what they come to: demo, comparisons, Table I, theory."""
