"""The history of policy, modes, waivers and who changed them: rows that are chained by hash."""
