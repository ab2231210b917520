"""The files of a table of the lake: what is read of them, and what is wrong with them."""
