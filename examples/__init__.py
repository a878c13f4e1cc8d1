"""Programs to read and to run: they are installed as ``tubes.examples``, and ``tubes demo`` runs the crawler."""
