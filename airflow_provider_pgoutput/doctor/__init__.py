"""Examines a pipeline without changing it, says what is wrong, and repairs what can be repaired safely."""
