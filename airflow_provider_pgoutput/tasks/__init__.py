"""What the operators share: arguments, the batch that a task received, outcomes, schedules."""
