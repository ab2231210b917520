"""Tables of the pipeline, read by engines from PyPI and compared with the source: ``make engines``."""
