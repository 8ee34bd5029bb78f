"""Reads training scripts: what they call in the order in which they run, told from the syntax tree alone."""
