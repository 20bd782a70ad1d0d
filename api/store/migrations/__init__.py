"""Alembic's migrations, a file each in `versions`."""
