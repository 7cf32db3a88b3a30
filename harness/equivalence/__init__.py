"""Whether two servers of one model give the same answers, token by token."""
