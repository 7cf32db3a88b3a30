"""Two runs side by side: what may be compared, what differs, and how sure that is. Pure."""
