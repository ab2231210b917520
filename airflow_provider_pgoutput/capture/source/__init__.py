"""Facts that SQL tells about the source: session, catalogs, rights, storage, errors."""
