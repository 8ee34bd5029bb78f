"""The machine as a picture and as a graph file: nested boxes for what holds what, lines for what joins what."""
