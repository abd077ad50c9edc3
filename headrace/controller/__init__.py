"""Controller services, one per noun: read records, apply the model's rules, write conditionally, queue the rest."""
