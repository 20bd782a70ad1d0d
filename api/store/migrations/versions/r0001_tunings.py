"""Tunings with their trials and confirmation runs."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "tunings",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("created_at", sa.DateTime, nullable=False),
        sa.Column("job_fingerprint", sa.Text, nullable=False),
        sa.Column("model_fingerprint", sa.Text),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("speedup", sa.Float),
        sa.Column("gpu", sa.Text),
        sa.Column("torch", sa.Text),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_index("ix_tunings_created_at", "tunings", ["created_at", "id"])
    op.create_index("ix_tunings_job_fingerprint", "tunings", ["job_fingerprint", "created_at"])
    op.create_index("ix_tunings_model_fingerprint", "tunings", ["model_fingerprint", "created_at"])
    op.create_table(
        "trials",
        *_key(),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason_code", sa.Text),
        sa.Column("samples_per_s", sa.Float),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_table("confirmation_runs", *_key(), sa.Column("document", sa.Text, nullable=False))


def downgrade() -> None:
    """Drop the tables."""
    for table in ("confirmation_runs", "trials", "tunings"):
        op.drop_table(table)


def _key() -> tuple[sa.Column[str], sa.Column[int]]:
    parent = sa.ForeignKey("tunings.id", ondelete="CASCADE")
    return (
        sa.Column("tuning_id", sa.Text, parent, primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    )
