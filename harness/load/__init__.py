"""Requests out, records in: clock, socket, HTTP, SSE, token timeline, Locust user and shape."""
