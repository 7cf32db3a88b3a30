"""What servers say of themselves: metric names, scraper, Prometheus, series."""
