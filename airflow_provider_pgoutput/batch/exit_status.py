"""The exit status of a Spark job. By it the task that started the job decides whether to retry."""

from __future__ import annotations

OK = 0


#: Trying again gives the same result (``FatalError``). Errors that this package does not know end with 1.
FATAL = 65


#: The tables have to be copied again (``CopyAgainError``).
COPY_AGAIN = 66


#: Trying again can help (``RetryableError``); EX_TEMPFAIL of sysexits.h.
RETRYABLE = 75
