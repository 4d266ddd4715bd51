"""Features or statistics in, numbers out."""
