"""What is told of work that is done, to whom it is sent and when again. Knows no Redis and no arq."""
