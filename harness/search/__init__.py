"""The knee search: levels chosen by what the finished ones gave, until the knee is known."""
