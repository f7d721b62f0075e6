"""Two recorded runs of the same training: where they part."""
