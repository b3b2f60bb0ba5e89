"""A model and questions become answers, decisions and scores."""
