"""From what a model wrote to what it is worth."""
