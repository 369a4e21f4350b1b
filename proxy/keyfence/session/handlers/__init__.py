"""Commands that change the session itself (login, transactions, subscriptions, the end), and KEYFENCE."""
