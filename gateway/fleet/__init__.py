"""The registered backends and what is known of them."""
