"""System prompt and chat template arguments of a project. Existing projects have none.

From this version on, transcripts are read as separate turns, and control tokens as text. The features of such prompts and texts
are deleted, so that they are computed again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("projects", sa.Column("system_prompt", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.add_column(
        "projects", sa.Column("template_arguments", sa.Text(), server_default=sa.text("'{}'"), nullable=False)
    )
    op.execute(
        "DELETE FROM features WHERE completion_id IN (SELECT completions.id FROM completions JOIN prompts"
        " ON prompts.id = completions.prompt_id WHERE prompts.text LIKE '%Assistant:' OR prompts.text LIKE '%<%'"
        " OR completions.text LIKE '%<%')"
    )
