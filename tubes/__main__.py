"""``python -m tubes`` is the command ``tubes``, where that is not on the PATH."""

from tubes.cli import main

main()
