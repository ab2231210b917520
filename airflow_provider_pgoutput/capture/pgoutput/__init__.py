"""The pgoutput protocol, sans-IO: bytes in, messages and columns out; looks nothing up."""
