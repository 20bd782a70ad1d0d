"""REST, dashboard, store and client."""
