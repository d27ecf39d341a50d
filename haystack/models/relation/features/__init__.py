"""Where a relation model's object and pair features come from."""
