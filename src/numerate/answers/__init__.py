"""From the text of an answer to a number, and from the number to a score."""
