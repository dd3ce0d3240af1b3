"""Shadow: scores finished answers beside the request path."""
