"""Encoders that were trained elsewhere, brought into one space by their class statistics."""
