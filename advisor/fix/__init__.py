"""Safe corrections of a script, as edits of its concrete syntax tree. LibCST is imported in this folder alone."""
