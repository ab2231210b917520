"""What pyiceberg tells about the lake: the checkpoint, the state of the tables, past batches."""
