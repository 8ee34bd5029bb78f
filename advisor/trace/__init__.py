"""Runs in a process of its own, with torch and the user's model: traces it on fake tensors, without a GPU."""
