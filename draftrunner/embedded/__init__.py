"""The embedded backend: an OpenAI-compatible server for a small real model, with speculation inside."""
