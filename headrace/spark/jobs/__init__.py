"""What Glue jobs share: tables that grow by micro-batches exactly once, and JSON records with a quarantine.

The jobs themselves are thin scripts in `glue_jobs/`: arguments, a session, and calls of this package.
"""
