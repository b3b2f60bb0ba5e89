"""A plan becomes many runs, and a report of what they show."""
