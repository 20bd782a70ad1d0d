"""The migrations; one that was released is never edited."""
