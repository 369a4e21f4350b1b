"""Commands that change the session itself: login, transactions, subscriptions, replies, the end."""
