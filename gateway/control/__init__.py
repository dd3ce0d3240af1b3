"""Control plane: the REST API for operators."""
