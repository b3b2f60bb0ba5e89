"""``numerate serve``: a model that says how sure it is, behind OpenAI's API."""
