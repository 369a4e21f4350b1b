"""A policy as other tools need it: Redis ACL rules, tables in Markdown, key builders. Text only, no I/O."""
