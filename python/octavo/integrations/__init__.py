"""Octavo inside other libraries."""
