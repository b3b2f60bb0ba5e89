"""A trained run and rows become predictions; training a model to predict with."""
