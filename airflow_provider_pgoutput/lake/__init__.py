"""Reads the lake through pyiceberg: the checkpoint, the state of the tables, the batches around a time."""
