"""Handlers of the commands that change the session itself (logins, transactions, QUIT …), and of KEYFENCE."""
