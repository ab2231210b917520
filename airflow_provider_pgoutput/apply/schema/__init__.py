"""The columns of a target: made, renamed, widened, and matched with staged columns."""
