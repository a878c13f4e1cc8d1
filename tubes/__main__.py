"""``python -m tubes`` is the command ``tubes``, for when that is not on the PATH."""

from tubes.cli import main

main()
