"""Store: registry, keys and stage records in a database."""
