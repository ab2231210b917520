"""The contract between capture and apply. Standard library only, and no input or output."""
