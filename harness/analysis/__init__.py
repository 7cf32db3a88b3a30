"""From records and series to figures, knees and findings; pure, numpy only."""
