"""Facts that SQL tells about the source: session, catalogs, slot, rights, storage, errors."""
