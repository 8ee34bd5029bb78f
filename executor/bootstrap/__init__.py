"""The file that torchrun starts: alone in its folder, since python puts that folder first in `sys.path`."""
