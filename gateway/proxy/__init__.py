"""Data plane: one request, from the client's bytes to the backend's and back."""
