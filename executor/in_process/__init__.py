"""Code that runs inside the user's training process: the standard library only, and torch where the script has it."""
