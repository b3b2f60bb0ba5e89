"""Names and settings become a model, and examples become encoded rows."""
