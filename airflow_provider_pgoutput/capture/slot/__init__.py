"""The replication slot: its facts, its life, its dangers, and where a batch of it may start or end."""
